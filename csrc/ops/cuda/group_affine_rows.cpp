// The group-affine operators with a width for each row, on CUDA.
#include "ops/group_affine_rows.h"

#include <tuple>

#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

template <class Key>
std::tuple<Tensor, Tensor, Tensor> group_affine_rows_compress(const Tensor& input, const Tensor& bits, int64_t nbytes,
                                                              int64_t group_size, bool stochastic, const Key& seed,
                                                              const Key& stream) {
  const auto call = group_affine_rows_compress_call(input, bits, nbytes, group_size, stochastic, seed, stream);
  launch_on(input, call.rows.misfit, [&](int32_t* misfit, cudaStream_t s) {
    return cuda::group_affine_rows_compress(call.args, call.rows.widths, misfit, s);
  });
  return {call.codes, call.bounds, call.rows.misfit};
}

std::tuple<Tensor, Tensor> group_affine_rows_decompress(const Tensor& codes, const Tensor& bounds, const Tensor& bits,
                                                        int64_t numel, int64_t group_size) {
  const auto call = group_affine_rows_decompress_call(codes, bounds, bits, numel, group_size);
  launch_on(codes, call.rows.misfit, [&](int32_t* misfit, cudaStream_t s) {
    return cuda::group_affine_rows_decompress(call.args, call.rows.widths, misfit, s);
  });
  return {call.output, call.rows.misfit};
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("group_affine_rows_compress", TORCH_BOX(&group_affine_rows_compress<int64_t>));
  m.impl("group_affine_rows_compress.tensor", TORCH_BOX(&group_affine_rows_compress<Tensor>));
  m.impl("group_affine_rows_decompress", TORCH_BOX(&group_affine_rows_decompress));
}
