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

Tensor group_affine_compress_graph(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic, int64_t seed,
                                   const Tensor& stream) {
  const auto call = group_affine_pack_call(input, bits, group_size, stochastic, seed, stream);
  launch_on(input, [&](cudaStream_t s) {
    const size_t gap = call.gap_bytes();
    const cudaError_t error = gap == 0 ? cudaSuccess : cudaMemsetAsync(call.gap(), 0, gap, s);
    return error != cudaSuccess ? error : cuda::group_affine_compress(call.args, s);
  });
  return call.payload;
}

std::tuple<Tensor, Tensor> group_affine_clamped_compress(const Tensor& input, int64_t bits, int64_t group_size,
                                                         bool stochastic, int64_t seed, int64_t stream, double least,
                                                         double most) {
  const auto call = group_affine_clamped_call(input, bits, group_size, stochastic, seed, stream, least, most);
  launch_on(input, [&](cudaStream_t s) { return cuda::group_affine_clamped_compress(call.args, s); });
  return {call.codes, call.bounds};
}

std::tuple<Tensor, Tensor, Tensor> group_affine_standardized_compress(const Tensor& input, int64_t bits,
                                                                      int64_t group_size, bool stochastic, int64_t seed,
                                                                      int64_t stream, int64_t statistics, int64_t inner,
                                                                      int64_t channels) {
  const auto call =
      standardized_compress_call(input, bits, group_size, stochastic, seed, stream, statistics, inner, channels);
  const GroupAffineCompress& args = call.codes.args;
  if (args.numel == 0) return {call.codes.codes, call.codes.bounds, call.found};
  // Of the parts' moments, and then of the factors. What is allocated after it waits for these kernels, on their stream.
  const int64_t parts = cuda::moment_parts(call.shape);
  const Tensor scratch = make_empty(input, {parts + call.shape.count}, ScalarType::Double);
  auto* moments = static_cast<double*>(scratch.mutable_data_ptr());
  void* factors = moments + parts;
  launch_on(input, [&](cudaStream_t s) {
    const cudaError_t error =
        cuda::take_moments({args.input, args.type, call.shape, moments, call.means, call.deviations, factors}, s);
    if (error != cudaSuccess) return error;
    return cuda::group_affine_standardized_compress(args, {call.shape, call.means, factors}, s);
  });
  return {call.codes.codes, call.codes.bounds, call.found};
}

void group_affine_standardized_compress_given(const Tensor& input, int64_t bits, int64_t group_size, bool stochastic,
                                              int64_t seed, int64_t stream, const Tensor& means, const Tensor& factors,
                                              int64_t inner, int64_t channels, const Tensor& codes,
                                              const Tensor& bounds, const Tensor& statistics) {
  const auto call = standardized_given_call(input, bits, group_size, stochastic, seed, stream, means, factors, inner,
                                            channels, codes, bounds, statistics);
  if (call.args.numel == 0) return;
  launch_on(input, [&](cudaStream_t s) {
    const cudaError_t error = cuda::invert_factors(call.args.type, call.shape.count, call.means, call.factors,
                                                   call.found, call.deviations, s);
    if (error != cudaSuccess) return error;
    return cuda::group_affine_standardized_compress(call.args, {call.shape, call.means, call.factors}, s);
  });
}

Tensor group_affine_standardized_activation(const Tensor& codes, const Tensor& bounds, const Tensor& scales,
                                            const Tensor& shifts, std::optional<Tensor> added, int64_t numel,
                                            int64_t inner, int64_t channels, int64_t bits, int64_t group_size,
                                            std::string function) {
  const auto call = standardized_activation_call(codes, bounds, scales, shifts, added, numel, inner, channels, bits,
                                                 group_size, function);
  launch_on(codes, [&](cudaStream_t s) {
    return cuda::group_affine_standardized_activation(call.values.args, call.activation, s);
  });
  return call.values.output;
}

Tensor group_affine_standardized_decompress(const Tensor& codes, const Tensor& bounds, const Tensor& statistics,
                                            int64_t numel, int64_t inner, int64_t channels, int64_t bits,
                                            int64_t group_size) {
  const auto call = standardized_decompress_call(codes, bounds, statistics, numel, inner, channels, bits, group_size);
  launch_on(codes, [&](cudaStream_t s) {
    return cuda::group_affine_standardized_decompress(call.values.args, {call.shape, call.means, call.deviations}, s);
  });
  return call.values.output;
}

Tensor group_affine_decompress(const Tensor& codes, const Tensor& bounds, int64_t numel, int64_t bits,
                               int64_t group_size) {
  const auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size);
  launch_on(codes, [&](cudaStream_t s) { return cuda::group_affine_decompress(call.args, s); });
  return call.output;
}

Tensor group_affine_decompress_graph(const Tensor& payload, int64_t numel, ScalarType dtype, int64_t bits,
                                     int64_t group_size) {
  const auto call = group_affine_unpack_call(payload, numel, dtype, bits, group_size);
  launch_on(payload, [&](cudaStream_t s) { return cuda::group_affine_decompress(call.args, s); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("group_affine_compress", TORCH_BOX(&group_affine_compress<int64_t>));
  m.impl("group_affine_compress.tensor", TORCH_BOX(&group_affine_compress<Tensor>));
  m.impl("group_affine_compress.graph", TORCH_BOX(&group_affine_compress_graph));
  m.impl("group_affine_clamped_compress", TORCH_BOX(&group_affine_clamped_compress));
  m.impl("group_affine_standardized_compress", TORCH_BOX(&group_affine_standardized_compress));
  m.impl("group_affine_standardized_decompress", TORCH_BOX(&group_affine_standardized_decompress));
  m.impl("group_affine_standardized_compress.given", TORCH_BOX(&group_affine_standardized_compress_given));
  m.impl("group_affine_standardized_activation", TORCH_BOX(&group_affine_standardized_activation));
  m.impl("group_affine_decompress", TORCH_BOX(&group_affine_decompress));
  m.impl("group_affine_decompress.graph", TORCH_BOX(&group_affine_decompress_graph));
}
