// Elements to codes of a few bits and back, without arithmetic: packed bytes, masks of two values, signs. One kernel
// packs and one unpacks; a functor says what an element's code is, or a code's element.
#include "codec/bits.h"
#include "codec/dispatch.h"
#include "codec/group_affine.h"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;

template <int width>
struct ByteCode {
  using Element = uint8_t;
  static constexpr int bits = width;
  __device__ bool fits(uint8_t byte) const { return byte >> bits == 0; }
  __device__ uint32_t code(uint8_t byte) const { return byte & ((1u << bits) - 1u); }
  __device__ uint8_t element(uint32_t code) const { return static_cast<uint8_t>(code); }
};

template <class E>
struct TwoValues {
  using Element = E;
  static constexpr int bits = 1;
  E low;
  E high;
  __device__ bool fits(E value) const { return value == low || value == high; }
  __device__ uint32_t code(E value) const { return value == high ? 1u : 0u; }
  __device__ E element(uint32_t code) const { return code != 0 ? high : low; }
};

// Every byte but 0 is true, as torch reads it.
struct Truth {
  using Element = uint8_t;
  static constexpr int bits = 1;
  uint8_t low;
  uint8_t high;
  __device__ bool fits(uint8_t value) const { return (value != 0) == low || (value != 0) == high; }
  __device__ uint32_t code(uint8_t value) const { return (value != 0) == high ? 1u : 0u; }
};

template <class E>
struct PositiveOrNan {
  using Element = E;
  static constexpr int bits = 1;
  __device__ bool fits(E) const { return true; }
  __device__ uint32_t code(E value) const { return load(value) <= compute_t<E>(0) ? 0u : 1u; }
};

// `misfit` is set to 1 where an element has no code; it may be null for a rule by which every element has one.
template <class Rule, class E = typename Rule::Element>
__global__ void __launch_bounds__(kWarps* kWarp)
    pack_kernel(Rule rule, const E* input, int64_t numel, uint8_t* packed, int32_t* misfit) {
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(numel - first);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, input + first, count);
  PackedRow<Rule::bits> codes = {};
  bool fits = true;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    fits &= rule.fits(row[i]);
    codes.put(i, rule.code(row[i]));
  }
  if (!fits) *misfit = 1;
  store_codes(tile, codes, packed + packed_bytes(first, Rule::bits), count);
}

template <class Rule, class E = typename Rule::Element>
__global__ void __launch_bounds__(kWarps* kWarp)
    unpack_kernel(Rule rule, const uint8_t* packed, int64_t numel, E* output) {
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(numel - first);
  if (count <= 0) return;

  const auto codes = load_codes<Rule::bits>(tile, packed + packed_bytes(first, Rule::bits), count);
  Row<E> row;
#pragma unroll
  for (int i = 0; i < kRow; ++i) row[i] = rule.element(codes.get(i));
  store_row(tile, row, output + first, count);
}

template <class Rule, class E = typename Rule::Element>
cudaError_t pack(const Rule& rule, const void* input, int64_t numel, uint8_t* packed, int32_t* misfit,
                 cudaStream_t stream) {
  if (numel == 0) return cudaSuccess;
  return launch(pack_kernel<Rule>, blocks_for(numel, kWarps * kTile), kWarps * kWarp, stream, rule,
                static_cast<const E*>(input), numel, packed, misfit);
}

template <class Rule, class E = typename Rule::Element>
cudaError_t unpack(const Rule& rule, const uint8_t* packed, int64_t numel, void* output, cudaStream_t stream) {
  if (numel == 0) return cudaSuccess;
  return launch(unpack_kernel<Rule>, blocks_for(numel, kWarps * kTile), kWarps * kWarp, stream, rule, packed, numel,
                static_cast<E*>(output));
}

}  // namespace

cudaError_t pack_bits(const uint8_t* codes, int64_t numel, int bits, uint8_t* packed, int32_t* excess,
                      cudaStream_t stream) {
  return with_bits(bits, [&]<int width>() { return pack(ByteCode<width>{}, codes, numel, packed, excess, stream); });
}

cudaError_t unpack_bits(const uint8_t* packed, int64_t numel, int bits, uint8_t* codes, cudaStream_t stream) {
  return with_bits(bits, [&]<int width>() { return unpack(ByteCode<width>{}, packed, numel, codes, stream); });
}

cudaError_t bit_mask_compress(const BitMaskCompress& args, int32_t* mismatch, cudaStream_t stream) {
  if (args.boolean) {
    const Truth truth{static_cast<uint8_t>(args.low), static_cast<uint8_t>(args.high)};
    return pack(truth, args.input, args.numel, args.mask, mismatch, stream);
  }
  return with_word(args.element_size, [&]<class E>() {
    const TwoValues<E> values{static_cast<E>(args.low), static_cast<E>(args.high)};
    return pack(values, args.input, args.numel, args.mask, mismatch, stream);
  });
}

cudaError_t bit_mask_decompress(const BitMaskDecompress& args, cudaStream_t stream) {
  return with_word(args.element_size, [&]<class E>() {
    const TwoValues<E> values{static_cast<E>(args.low), static_cast<E>(args.high)};
    return unpack(values, args.mask, args.numel, args.output, stream);
  });
}

cudaError_t positive_mask(const PositiveMask& args, cudaStream_t stream) {
  return with_type(args.type, [&]<class E>() {
    return pack(PositiveOrNan<E>{}, args.input, args.numel, args.mask, nullptr, stream);
  });
}

}  // namespace actcore::cuda
