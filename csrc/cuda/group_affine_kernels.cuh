// The group-affine kernels and their launches, for elements as a transform leaves them; what a warp or a block does is in
// group_affine.cuh.
#pragma once

#include "codec/dispatch.h"
#include "cuda/group_affine.cuh"
#include "cuda/launch.cuh"

namespace actcore::cuda {

// Groups of at most 32 rows.
template <class E, int bits, class Transform>
__global__ void __launch_bounds__(kWarps* kWarp)
    compress_kernel(GroupAffineCompress args, GroupTiles tiles, Transform transform) {
  __shared__ WarpTile<E> memory[kWarps];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  if (index * tiles.elements >= args.numel) return;
  compress_tile<E, bits, false>(memory[warp_index()], args, index, tiles, transform);
}

// Groups of any number of rows: a block takes one group.
template <class E, int bits, class Transform>
__global__ void __launch_bounds__(kGroupWarps<E>* kWarp)
    compress_group_kernel(GroupAffineCompress args, Transform transform) {
  __shared__ GroupMemory<E> memory;
  compress_group<E, bits, false>(memory, args, static_cast<int64_t>(blockIdx.x), transform);
}

template <class E, int bits, class Transform>
__global__ void __launch_bounds__(kWarps* kWarp)
    decompress_kernel(GroupAffineDecompress args, GroupTiles tiles, Transform transform) {
  __shared__ WarpTile<E> memory[kWarps];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  if (index * tiles.elements >= args.numel) return;
  decompress_tile<E, bits>(memory[warp_index()], args, index, tiles, transform);
}

// Of groups that a tile holds.
template <class E, int bits, class Transform>
cudaError_t compress_tiles(const GroupAffineCompress& args, const Transform& transform, cudaStream_t stream) {
  const GroupTiles tiles(args.group_size);
  const int64_t blocks = blocks_for(tiles.count(args.numel), kWarps);
  return launch(compress_kernel<E, bits, Transform>, blocks, kWarps * kWarp, stream, args, tiles, transform);
}

template <class E, int bits, class Transform>
cudaError_t compress(const GroupAffineCompress& args, const Transform& transform, cudaStream_t stream) {
  if (args.group_size <= kTile) return compress_tiles<E, bits>(args, transform, stream);
  const int64_t tiles = blocks_for(args.group_size, kTile), groups = blocks_for(args.numel, args.group_size);
  const int warps = tiles < kGroupWarps<E> ? static_cast<int>(tiles) : kGroupWarps<E>;
  return launch(compress_group_kernel<E, bits, Transform>, groups, warps * kWarp, stream, args, transform);
}

template <class E, class Transform>
cudaError_t compress_with(const GroupAffineCompress& args, const Transform& transform, cudaStream_t stream) {
  return with_bits(args.bits, [&]<int bits>() { return compress<E, bits>(args, transform, stream); });
}

template <class E, class Transform>
cudaError_t decompress_with(const GroupAffineDecompress& args, const Transform& transform, cudaStream_t stream) {
  return with_bits(args.bits, [&]<int bits>() {
    const GroupTiles tiles(args.group_size);
    const int64_t blocks = blocks_for(tiles.count(args.numel), kWarps);
    return launch(decompress_kernel<E, bits, Transform>, blocks, kWarps * kWarp, stream, args, tiles, transform);
  });
}

// `transform_of` makes the transform of a type of elements.
template <class TransformOf>
cudaError_t compress_elements(const GroupAffineCompress& args, cudaStream_t stream, const TransformOf& transform_of) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type,
                   [&]<class E>() { return compress_with<E>(args, transform_of.template operator()<E>(), stream); });
}

template <class TransformOf>
cudaError_t decompress_elements(const GroupAffineDecompress& args, cudaStream_t stream,
                                const TransformOf& transform_of) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type,
                   [&]<class E>() { return decompress_with<E>(args, transform_of.template operator()<E>(), stream); });
}

}  // namespace actcore::cuda
