// Integers of a known range on CUDA: a warp writes its tile's part of each plane.
#include "codec/narrow.h"

#include "codec/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;

// One plane's codes of a row: the `bits` bits from bit `shift` on.
template <int bits, class Word>
__device__ PackedRow<bits> plane_of(const Row<Word>& row, int shift) {
  PackedRow<bits> codes = {};
#pragma unroll
  for (int i = 0; i < kRow; ++i) codes.put(i, static_cast<uint32_t>(row[i] >> shift) & ((1u << bits) - 1u));
  return codes;
}

template <int bits, class Word>
__device__ void add_plane(Row<Word>& row, const PackedRow<bits>& codes, int shift) {
#pragma unroll
  for (int i = 0; i < kRow; ++i) row[i] |= static_cast<Word>(static_cast<Word>(codes.get(i)) << shift);
}

// `rest`: bits of the last plane. A range of one value has no plane; its elements are only checked.
template <class Word, int rest>
__global__ void __launch_bounds__(kWarps* kWarp) compress_kernel(NarrowCompress args, int32_t* misfit) {
  __shared__ WarpTile<Word> tiles[kWarps];
  WarpTile<Word>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Word low = static_cast<Word>(args.low), span = static_cast<Word>(args.span);
  Row<Word> row = load_row(tile, static_cast<const Word*>(args.input) + first, count);
  bool fits = true;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    row[i] = static_cast<Word>(row[i] - low);
    fits &= row[i] <= span;
  }
  if (!fits) *misfit = 1;
  if (args.bits == 0) return;
  const int planes = narrow_planes(args.bits);
  for (int plane = 0; plane < planes; ++plane) {
    store_codes(tile, plane_of<8>(row, 8 * plane), args.packed + narrow_offset(args.numel, args.bits, plane, first),
                count);
  }
  store_codes(tile, plane_of<rest>(row, 8 * planes), args.packed + narrow_offset(args.numel, args.bits, planes, first),
              count);
}

// An offset beyond the span, which no compression made, gives the upper end of the range.
template <class Word, int rest>
__global__ void __launch_bounds__(kWarps* kWarp) decompress_kernel(NarrowDecompress args) {
  __shared__ WarpTile<Word> tiles[kWarps];
  WarpTile<Word>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Word low = static_cast<Word>(args.low), span = static_cast<Word>(args.span);
  Row<Word> row = {};
  if (args.bits > 0) {
    const int planes = narrow_planes(args.bits);
    for (int plane = 0; plane < planes; ++plane) {
      const uint8_t* from = args.packed + narrow_offset(args.numel, args.bits, plane, first);
      add_plane<8>(row, load_codes<8>(tile, from, count), 8 * plane);
    }
    const uint8_t* from = args.packed + narrow_offset(args.numel, args.bits, planes, first);
    add_plane<rest>(row, load_codes<rest>(tile, from, count), 8 * planes);
  }
#pragma unroll
  for (int i = 0; i < kRow; ++i) row[i] = static_cast<Word>(low + (row[i] < span ? row[i] : span));
  store_row(tile, row, static_cast<Word*>(args.output) + first, count);
}

// Calls with the word of an element and the bits of the last plane, 1 where there is none.
template <class Call>
cudaError_t with_word_and_rest(int element_size, int bits, const Call& call) {
  return with_word(element_size, [&]<class Word>() {
    return with_bits(bits > 0 ? narrow_rest(bits) : 1,
                     [&]<int rest>() { return call.template operator()<Word, rest>(); });
  });
}

}  // namespace

cudaError_t narrow_compress(const NarrowCompress& args, int32_t* misfit, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_word_and_rest(args.element_size, args.bits, [&]<class Word, int rest>() {
    return launch(compress_kernel<Word, rest>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args,
                  misfit);
  });
}

cudaError_t narrow_decompress(const NarrowDecompress& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_word_and_rest(args.element_size, args.bits, [&]<class Word, int rest>() {
    return launch(decompress_kernel<Word, rest>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args);
  });
}

}  // namespace actcore::cuda
