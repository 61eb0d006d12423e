// The float8 operators on CUDA.
#include "ops/float8.h"

#include <tuple>

#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

template <class Key>
std::tuple<Tensor, Tensor> float8_compress(const Tensor& input, ScalarType format, int64_t group_size, bool stochastic,
                                           const Key& seed, const Key& stream) {
  const auto call = float8_compress_call(input, format, group_size, stochastic, seed, stream);
  launch_on(input, [&](cudaStream_t s) { return cuda::float8_compress(call.args, s); });
  return {call.codes, call.bounds};
}

Tensor float8_decompress(const Tensor& codes, const Tensor& bounds, ScalarType format, int64_t group_size) {
  const auto call = float8_decompress_call(codes, bounds, format, group_size);
  launch_on(codes, [&](cudaStream_t s) { return cuda::float8_decompress(call.args, s); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("float8_compress", TORCH_BOX(&float8_compress<int64_t>));
  m.impl("float8_compress.tensor", TORCH_BOX(&float8_compress<Tensor>));
  m.impl("float8_decompress", TORCH_BOX(&float8_decompress));
}
