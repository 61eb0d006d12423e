// The float8 operators on the CPU: kernels shared among torch's threads.
#include "ops/float8.h"

#include <tuple>

#include "ops/cpu/share.h"

namespace actcore::ops {
namespace {

template <class Key>
std::tuple<Tensor, Tensor> float8_compress(const Tensor& input, ScalarType format, int64_t group_size, bool stochastic,
                                           const Key& seed, const Key& stream) {
  auto call = float8_compress_call(input, format, group_size, stochastic, seed, stream);
  call.args.key = read_key(call.args.key);
  expect_all_written(call.codes, call.codes.numel());
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().float8_compress(call.args, begin, end); });
  return {call.codes, call.bounds};
}

Tensor float8_decompress(const Tensor& codes, const Tensor& bounds, ScalarType format, int64_t group_size) {
  const auto call = float8_decompress_call(codes, bounds, format, group_size);
  expect_all_written(call.output, call.args.numel * static_cast<int64_t>(call.output.element_size()));
  share_groups(call.groups, group_size,
               [&](int64_t begin, int64_t end) { cpu::kernels().float8_decompress(call.args, begin, end); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("float8_compress", TORCH_BOX(&float8_compress<int64_t>));
  m.impl("float8_compress.tensor", TORCH_BOX(&float8_compress<Tensor>));
  m.impl("float8_decompress", TORCH_BOX(&float8_decompress));
}
