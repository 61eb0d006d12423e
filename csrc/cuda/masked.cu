// ReLU and dropout with a mask of one bit an element on CUDA: one pass over memory each way.
#include "codec/masked.h"

#include "codec/dispatch.h"
#include "cuda/fused.h"
#include "cuda/launch.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;

template <class E>
__device__ typename Pattern<E>::Word word_of(E value) {
  typename Pattern<E>::Word word;
  memcpy(&word, &value, sizeof word);
  return word;
}

template <class E>
__global__ void __launch_bounds__(kWarps* kWarp) relu_kernel(ReluMask args) {
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  PackedRow<1> mask = {};
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const auto word = word_of(row[i]);
    mask.put(i, lets_gradient_through<E>(word) ? 1u : 0u);
    if (is_negative<E>(word)) row[i] = E{};
  }
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
  store_codes(tile, mask, args.mask + packed_bytes(first, 1), count);
}

// The row's elements times `scale` where the mask is 1, 0 elsewhere.
template <class E, class T = compute_t<E>>
__device__ void scale_row(Row<E>& row, const PackedRow<1>& mask, T scale) {
#pragma unroll
  for (int i = 0; i < kRow; ++i) store(&row[i], mask.get(i) != 0 ? load(row[i]) * scale : T(0));
}

template <class E>
__global__ void __launch_bounds__(kWarps* kWarp) dropout_kernel(DropoutMask args) {
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  const uint64_t seed = args.seed + (args.draw != nullptr ? static_cast<uint64_t>(*args.draw) : 0);
  const auto block = static_cast<uint64_t>(first + lane_index() * kRow) / kHalfBlock;
  PackedRow<1> mask = {};
#pragma unroll
  for (int b = 0; b < kRow / kHalfBlock; ++b) {
    const PhiloxBlock noise = philox(seed, args.stream, block + static_cast<uint64_t>(b));
#pragma unroll
    for (int i = 0; i < kHalfBlock; ++i) {
      mask.put(b * kHalfBlock + i, noise_half(noise, i) >= args.threshold ? 1u : 0u);
    }
  }
  scale_row(row, mask, static_cast<compute_t<E>>(args.scale));
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
  store_codes(tile, mask, args.mask + packed_bytes(first, 1), count);
}

template <class E>
__global__ void __launch_bounds__(kWarps* kWarp) backward_kernel(MaskBackward args) {
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const auto mask = load_codes<1>(tile, args.mask + packed_bytes(first, 1), count);
  Row<E> row = load_row(tile, static_cast<const E*>(args.gradient) + first, count);
  scale_row(row, mask, static_cast<compute_t<E>>(args.scale));
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
}

}  // namespace

cudaError_t relu_mask(const ReluMask& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(relu_kernel<E>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args);
  });
}

cudaError_t dropout_mask(const DropoutMask& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(dropout_kernel<E>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args);
  });
}

cudaError_t mask_backward(const MaskBackward& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(backward_kernel<E>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args);
  });
}

}  // namespace actcore::cuda
