// The group-affine kernels; what a warp or a block does is in group_affine.cuh.
#include "cuda/group_affine.cuh"

#include "codec/dispatch.h"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace actcore::cuda {
namespace {

// Groups of at most 32 rows.
template <class E, int bits>
__global__ void __launch_bounds__(kWarps* kWarp) compress_kernel(GroupAffineCompress args, GroupTiles tiles) {
  __shared__ WarpTile<E> memory[kWarps];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  if (index * tiles.elements < args.numel) compress_tile<E, bits, false>(memory[warp_index()], args, index, tiles);
}

// Groups of any number of rows: a block takes one group.
template <class E, int bits>
__global__ void __launch_bounds__(kGroupWarps<E>* kWarp) compress_group_kernel(GroupAffineCompress args) {
  __shared__ GroupMemory<E> memory;
  compress_group<E, bits, false>(memory, args, static_cast<int64_t>(blockIdx.x));
}

template <class E, int bits>
__global__ void __launch_bounds__(kWarps* kWarp) decompress_kernel(GroupAffineDecompress args, GroupTiles tiles) {
  __shared__ WarpTile<E> memory[kWarps];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  if (index * tiles.elements < args.numel) decompress_tile<E, bits>(memory[warp_index()], args, index, tiles);
}

template <class E, int bits>
cudaError_t compress(const GroupAffineCompress& args, cudaStream_t stream) {
  if (args.group_size <= kTile) {
    const GroupTiles tiles(args.group_size);
    const int64_t blocks = blocks_for(tiles.count(args.numel), kWarps);
    return launch(compress_kernel<E, bits>, blocks, kWarps * kWarp, stream, args, tiles);
  }
  const int64_t tiles = blocks_for(args.group_size, kTile);
  const int warps = tiles < kGroupWarps<E> ? static_cast<int>(tiles) : kGroupWarps<E>;
  return launch(compress_group_kernel<E, bits>, blocks_for(args.numel, args.group_size), warps * kWarp, stream, args);
}

}  // namespace

cudaError_t group_affine_compress(const GroupAffineCompress& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_bits(args.bits, [&]<int bits>() { return compress<E, bits>(args, stream); });
  });
}

cudaError_t group_affine_decompress(const GroupAffineDecompress& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_bits(args.bits, [&]<int bits>() {
      const GroupTiles tiles(args.group_size);
      const int64_t blocks = blocks_for(tiles.count(args.numel), kWarps);
      return launch(decompress_kernel<E, bits>, blocks, kWarps * kWarp, stream, args, tiles);
    });
  });
}

}  // namespace actcore::cuda
