// The operators that store integers of a known range, on CUDA.
#include "ops/narrow.h"

#include <tuple>

#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> narrow_compress(const Tensor& input, int64_t low, int64_t high) {
  const auto call = narrow_compress_call(input, low, high);
  launch_on(input, call.misfit,
            [&](int32_t* misfit, cudaStream_t s) { return cuda::narrow_compress(call.args, misfit, s); });
  return {call.packed, call.misfit};
}

Tensor narrow_decompress(const Tensor& packed, int64_t numel, ScalarType dtype, int64_t low, int64_t high) {
  const auto call = narrow_decompress_call(packed, numel, dtype, low, high);
  launch_on(packed, [&](cudaStream_t s) { return cuda::narrow_decompress(call.args, s); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("narrow_compress", TORCH_BOX(&narrow_compress));
  m.impl("narrow_decompress", TORCH_BOX(&narrow_decompress));
}
