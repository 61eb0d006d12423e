// The group-affine operators on CUDA.
#include <tuple>

#include "ops/cuda/launch.h"
#include "ops/group_affine.h"

namespace actcore::ops {
namespace {

template <class Key>
std::tuple<Tensor, Tensor> group_affine_compress(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic,
                                                 const Key& seed, const Key& stream) {
  const auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream);
  launch_on(input, [&](cudaStream_t s) { return cuda::group_affine_compress(call.args, s); });
  return {call.codes, call.bounds};
}

Tensor group_affine_decompress(const Tensor& codes, const Tensor& bounds, int64_t numel, int64_t bits,
                               int64_t group_size) {
  const auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size);
  launch_on(codes, [&](cudaStream_t s) { return cuda::group_affine_decompress(call.args, s); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("group_affine_compress", TORCH_BOX(&group_affine_compress<int64_t>));
  m.impl("group_affine_compress.tensor", TORCH_BOX(&group_affine_compress<Tensor>));
  m.impl("group_affine_decompress", TORCH_BOX(&group_affine_decompress));
}
