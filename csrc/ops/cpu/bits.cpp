// The bit-storing operators on the CPU: kernels shared among torch's threads.
#include <atomic>
#include <tuple>

#include "ops/bits.h"
#include "ops/cpu/direct.h"
#include "ops/cpu/share.h"

namespace actcore::ops {
namespace {

void report(const std::atomic<bool>& fits, const Tensor& misfit) {
  *static_cast<int32_t*>(misfit.mutable_data_ptr()) = !fits;
}

std::tuple<Tensor, Tensor> pack_bits(const Tensor& codes, int64_t bits) {
  const auto call = pack_bits_call(codes, bits);
  const auto* from = static_cast<const uint8_t*>(codes.const_data_ptr());
  auto* to = static_cast<uint8_t*>(call.packed.mutable_data_ptr());
  std::atomic<bool> fits = true;
  share_elements(codes.numel(), [&](int64_t begin, int64_t end) {
    if (!cpu::kernels().pack_bits(from, static_cast<int>(bits), to, begin, end)) fits = false;
  });
  report(fits, call.misfit);
  return {call.packed, call.misfit};
}

Tensor unpack_bits(const Tensor& packed, int64_t bits, int64_t numel) {
  const Tensor codes = unpack_bits_call(packed, bits, numel);
  const auto* from = static_cast<const uint8_t*>(packed.const_data_ptr());
  auto* to = static_cast<uint8_t*>(codes.mutable_data_ptr());
  share_elements(numel, [&](int64_t begin, int64_t end) {
    cpu::kernels().unpack_bits(from, static_cast<int>(bits), to, begin, end);
  });
  return codes;
}

std::tuple<Tensor, Tensor> bit_mask_compress(const Tensor& input, double low, double high) {
  const auto call = bit_mask_compress_call(input, low, high);
  std::atomic<bool> fits = true;
  share_elements(call.args.numel, [&](int64_t begin, int64_t end) {
    if (!cpu::kernels().bit_mask_compress(call.args, begin, end)) fits = false;
  });
  report(fits, call.misfit);
  return {call.mask, call.misfit};
}

Tensor bit_mask_compress_graph(const Tensor& input, double low, double high) {
  const auto call = bit_mask_call(input, low, high);
  share_elements(call.args.numel,
                 [&](int64_t begin, int64_t end) { cpu::kernels().bit_mask_compress(call.args, begin, end); });
  return call.mask;
}

Tensor bit_mask_decompress(const Tensor& mask, int64_t numel, ScalarType dtype, double low, double high) {
  const auto call = bit_mask_decompress_call(mask, numel, dtype, low, high);
  share_elements(numel, [&](int64_t begin, int64_t end) { cpu::kernels().bit_mask_decompress(call.args, begin, end); });
  return call.output;
}

Tensor positive_mask(const Tensor& input) {
  const auto call = positive_mask_call(input);
  share_elements(call.args.numel,
                 [&](int64_t begin, int64_t end) { cpu::kernels().positive_mask(call.args, begin, end); });
  return call.mask;
}

ACTCORE_DIRECT(bit_mask_compress, &bit_mask_compress);
ACTCORE_DIRECT(bit_mask_decompress, &bit_mask_decompress);
ACTCORE_DIRECT(positive_mask, &positive_mask);
ACTCORE_DIRECT(bit_mask_compress_graph, &bit_mask_compress_graph);

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
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
