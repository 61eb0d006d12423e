// The group-affine codec with a width for each row. One block sums up the rows' sizes; the kernels after it on the stream
// find there where a row's codes lie, so the host never waits to learn it.
#include "codec/dispatch.h"
#include "codec/rows.h"
#include "cuda/group_affine.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace actcore::cuda {
namespace {

constexpr int kScanWarps = 32;

// Fills widths.offsets, with -1 for a row whose width is none or whose codes end beyond the bytes there are.
__global__ void __launch_bounds__(kScanWarps* kWarp) offsets_kernel(RowWidths widths, int32_t* misfit) {
  __shared__ int64_t of_warp[kScanWarps];
  const int lane = lane_index();
  int64_t before = 0;  // bytes of the rows that are done
  for (int64_t done = 0; done < widths.rows; done += kScanWarps * kWarp) {
    const int64_t row = done + threadIdx.x;
    const int width = row < widths.rows ? row_width(widths, row) : 0;
    const int64_t size = packed_bytes(widths.row_size, width);
    int64_t end = size;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int64_t left = __shfl_up_sync(0xFFFFFFFFu, end, offset);
      end += lane >= offset ? left : 0;
    }
    if (lane == kWarp - 1) of_warp[warp_index()] = end;
    __syncthreads();
    end += before;
    for (int w = 0; w < kScanWarps; ++w) {
      if (w < warp_index()) end += of_warp[w];
      before += of_warp[w];
    }
    if (row < widths.rows) {
      const int64_t begin = end - size;
      const bool stored = width > 0 && end <= widths.nbytes;
      widths.offsets[row] = stored ? begin : -1;
      if (!stored) *misfit = 1;
      if (begin <= widths.nbytes && end > widths.nbytes) widths.offsets[widths.rows] = begin;
    }
    __syncthreads();  // until here others may still read of_warp
  }
  if (threadIdx.x == 0 && before <= widths.nbytes) widths.offsets[widths.rows] = before;
}

// Writes zeros behind the last row's codes: all threads of the grid share them.
__device__ void clear_unused(const RowWidths& widths, uint8_t* codes) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t mine = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = widths.offsets[widths.rows] + mine; i < widths.nbytes; i += threads) codes[i] = 0;
}

template <class E>
__device__ void fill_nan(void* to, int64_t first, int64_t end) {
  for (int64_t i = first + threadIdx.x % kWarp; i < end; i += kWarp) {
    store(static_cast<E*>(to) + i, static_cast<compute_t<E>>(NAN));
  }
}

// Calls the instance for `width`, 1 to 8.
template <class E, int bits = 1>
__device__ void compress_row_tile(WarpTile<E>& tile, const GroupAffineCompress& row, int64_t index,
                                  const GroupTiles& tiles) {
  if constexpr (bits < kMaxBits) {
    if (row.bits != bits) return compress_row_tile<E, bits + 1>(tile, row, index, tiles);
  }
  compress_tile<E, bits, true>(tile, row, index, tiles);
}

template <class E, int bits = 1>
__device__ void compress_row_group(GroupMemory<E>& memory, const GroupAffineCompress& row, int64_t index) {
  if constexpr (bits < kMaxBits) {
    if (row.bits != bits) return compress_row_group<E, bits + 1>(memory, row, index);
  }
  compress_group<E, bits, true>(memory, row, index);
}

template <class E, int bits = 1>
__device__ void decompress_row_tile(WarpTile<E>& tile, const GroupAffineDecompress& row, int64_t index,
                                    const GroupTiles& tiles) {
  if constexpr (bits < kMaxBits) {
    if (row.bits != bits) return decompress_row_tile<E, bits + 1>(tile, row, index, tiles);
  }
  decompress_tile<E, bits>(tile, row, index, tiles);
}

// A warp takes a tile of one row; `tiles_of_row` of them cover it.
template <class E>
__global__ void __launch_bounds__(kWarps* kWarp)
    compress_kernel(GroupAffineCompress args, RowWidths widths, int64_t tiles_of_row, GroupTiles tiles) {
  __shared__ WarpTile<E> memory[kWarps];
  clear_unused(widths, args.codes);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  const int64_t row = warp / tiles_of_row, index = warp % tiles_of_row;
  if (row >= widths.rows) return;
  const int64_t offset = widths.offsets[row];
  const auto part = row_of(args, widths, row, row_width(widths, row), offset, sizeof(E));
  if (offset < 0) {
    const int64_t group = index * tiles.groups, groups = group_count(widths.row_size, args.group_size);
    fill_nan<E>(part.bounds, 2 * group, 2 * (groups - group < tiles.groups ? groups : group + tiles.groups));
    return;
  }
  compress_row_tile(memory[warp_index()], part, index, tiles);
}

// A block takes a group of one row; `groups` of them cover it.
template <class E>
__global__ void __launch_bounds__(kGroupWarps<E>* kWarp)
    compress_group_kernel(GroupAffineCompress args, RowWidths widths, int64_t groups) {
  __shared__ GroupMemory<E> memory;
  clear_unused(widths, args.codes);
  const int64_t row = blockIdx.x / groups, group = blockIdx.x % groups;
  const int64_t offset = widths.offsets[row];
  const auto part = row_of(args, widths, row, row_width(widths, row), offset, sizeof(E));
  if (offset < 0) {
    if (warp_index() == 0) fill_nan<E>(part.bounds, 2 * group, 2 * group + 2);
    return;
  }
  compress_row_group(memory, part, group);
}

template <class E>
__global__ void __launch_bounds__(kWarps* kWarp)
    decompress_kernel(GroupAffineDecompress args, RowWidths widths, int64_t tiles_of_row, GroupTiles tiles) {
  __shared__ WarpTile<E> memory[kWarps];
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  const int64_t row = warp / tiles_of_row, index = warp % tiles_of_row;
  if (row >= widths.rows) return;
  const int64_t offset = widths.offsets[row];
  const auto part = row_of(args, widths, row, row_width(widths, row), offset, sizeof(E));
  if (offset < 0) {
    const int64_t first = index * tiles.elements;
    fill_nan<E>(part.output, first, first + tile_count(widths.row_size - first, tiles.elements));
    return;
  }
  decompress_row_tile(memory[warp_index()], part, index, tiles);
}

cudaError_t find_offsets(const RowWidths& widths, int32_t* misfit, cudaStream_t stream) {
  return launch(offsets_kernel, 1, kScanWarps * kWarp, stream, widths, misfit);
}

template <class E>
cudaError_t compress(const GroupAffineCompress& args, const RowWidths& widths, cudaStream_t stream) {
  if (args.group_size <= kTile) {
    const GroupTiles tiles(args.group_size);
    const int64_t of_row = tiles.count(widths.row_size), blocks = blocks_for(widths.rows * of_row, kWarps);
    return launch(compress_kernel<E>, blocks, kWarps * kWarp, stream, args, widths, of_row, tiles);
  }
  const int64_t groups = blocks_for(widths.row_size, args.group_size);
  const int64_t tiles = blocks_for(args.group_size, kTile);
  const int warps = tiles < kGroupWarps<E> ? static_cast<int>(tiles) : kGroupWarps<E>;
  return launch(compress_group_kernel<E>, widths.rows * groups, warps * kWarp, stream, args, widths, groups);
}

}  // namespace

cudaError_t group_affine_rows_compress(const GroupAffineCompress& args, const RowWidths& widths, int32_t* misfit,
                                       cudaStream_t stream) {
  const cudaError_t error = find_offsets(widths, misfit, stream);
  if (error != cudaSuccess) return error;
  if (args.numel == 0) return cudaMemsetAsync(args.codes, 0, static_cast<size_t>(widths.nbytes), stream);
  return with_type(args.type, [&]<class E>() { return compress<E>(args, widths, stream); });
}

cudaError_t group_affine_rows_decompress(const GroupAffineDecompress& args, const RowWidths& widths, int32_t* misfit,
                                         cudaStream_t stream) {
  const cudaError_t error = find_offsets(widths, misfit, stream);
  if (error != cudaSuccess || args.numel == 0) return error;
  const GroupTiles tiles(args.group_size);
  const int64_t of_row = tiles.count(widths.row_size), blocks = blocks_for(widths.rows * of_row, kWarps);
  return with_type(args.type, [&]<class E>() {
    return launch(decompress_kernel<E>, blocks, kWarps * kWarp, stream, args, widths, of_row, tiles);
  });
}

}  // namespace actcore::cuda
