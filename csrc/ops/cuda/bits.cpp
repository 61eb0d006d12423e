// The bit-storing operators on CUDA.
#include <tuple>

#include "ops/bits.h"
#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> pack_bits(const Tensor& codes, int64_t bits) {
  const auto call = pack_bits_call(codes, bits);
  launch_on(codes, call.misfit, [&](int32_t* misfit, cudaStream_t s) {
    return cuda::pack_bits(static_cast<const uint8_t*>(codes.const_data_ptr()), codes.numel(), static_cast<int>(bits),
                           static_cast<uint8_t*>(call.packed.mutable_data_ptr()), misfit, s);
  });
  return {call.packed, call.misfit};
}

Tensor unpack_bits(const Tensor& packed, int64_t bits, int64_t numel) {
  const Tensor codes = unpack_bits_call(packed, bits, numel);
  launch_on(packed, [&](cudaStream_t s) {
    return cuda::unpack_bits(static_cast<const uint8_t*>(packed.const_data_ptr()), numel, static_cast<int>(bits),
                             static_cast<uint8_t*>(codes.mutable_data_ptr()), s);
  });
  return codes;
}

std::tuple<Tensor, Tensor> bit_mask_compress(const Tensor& input, double low, double high) {
  const auto call = bit_mask_compress_call(input, low, high);
  launch_on(input, call.misfit,
            [&](int32_t* misfit, cudaStream_t s) { return cuda::bit_mask_compress(call.args, misfit, s); });
  return {call.mask, call.misfit};
}

Tensor bit_mask_compress_graph(const Tensor& input, double low, double high) {
  return std::get<0>(bit_mask_compress(input, low, high));
}

Tensor bit_mask_decompress(const Tensor& mask, int64_t numel, ScalarType dtype, double low, double high) {
  const auto call = bit_mask_decompress_call(mask, numel, dtype, low, high);
  launch_on(mask, [&](cudaStream_t s) { return cuda::bit_mask_decompress(call.args, s); });
  return call.output;
}

Tensor positive_mask(const Tensor& input) {
  const auto call = positive_mask_call(input);
  launch_on(input, [&](cudaStream_t s) { return cuda::positive_mask(call.args, s); });
  return call.mask;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("pack_bits", TORCH_BOX(&pack_bits));
  m.impl("unpack_bits", TORCH_BOX(&unpack_bits));
  m.impl("bit_mask_compress", TORCH_BOX(&bit_mask_compress));
  m.impl("bit_mask_compress.graph", TORCH_BOX(&bit_mask_compress_graph));
  m.impl("bit_mask_decompress", TORCH_BOX(&bit_mask_decompress));
  m.impl("bit_mask_decompress.graph", TORCH_BOX(&bit_mask_decompress));
  m.impl("positive_mask", TORCH_BOX(&positive_mask));
  m.impl("positive_mask.graph", TORCH_BOX(&positive_mask));
}
