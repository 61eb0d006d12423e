// The operators that store integers of a known range, on the CPU: kernels shared among torch's threads.
#include "ops/narrow.h"

#include <atomic>
#include <tuple>

#include "ops/cpu/direct.h"
#include "ops/cpu/share.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> narrow_compress(const Tensor& input, int64_t low, int64_t high) {
  const auto call = narrow_compress_call(input, low, high);
  std::atomic<bool> fits = true;
  share_elements(call.args.numel, [&](int64_t begin, int64_t end) {
    if (!cpu::kernels().narrow_compress(call.args, begin, end)) fits = false;
  });
  *static_cast<int32_t*>(call.misfit.mutable_data_ptr()) = !fits;
  return {call.packed, call.misfit};
}

Tensor narrow_decompress(const Tensor& packed, int64_t numel, ScalarType dtype, int64_t low, int64_t high) {
  const auto call = narrow_decompress_call(packed, numel, dtype, low, high);
  expect_all_written(call.output, numel * call.args.element_size);
  share_elements(numel, [&](int64_t begin, int64_t end) { cpu::kernels().narrow_decompress(call.args, begin, end); });
  return call.output;
}

ACTCORE_DIRECT(narrow_compress, &narrow_compress);
ACTCORE_DIRECT(narrow_decompress, &narrow_decompress);

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("narrow_compress", TORCH_BOX(&narrow_compress));
  m.impl("narrow_decompress", TORCH_BOX(&narrow_decompress));
}
