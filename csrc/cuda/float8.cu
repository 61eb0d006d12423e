// The float8 codec on CUDA: bit for bit what csrc/cpu computes. A thread takes a row of 32 elements, so a group is
// group_size / 32 threads.
#include "codec/float8.h"

#include "codec/dispatch.h"
#include "cuda/group_tiles.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/row_codes.cuh"
#include "cuda/row_noise.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;

// Warps that share a group longer than a tile: as many as keep 16 KiB of tiles, of which a processor holds 13.
template <class E>
constexpr int kGroupWarps = 16 * 1024 / static_cast<int>(sizeof(WarpTile<E>));

// The integer that magnitudes are exchanged between threads as.
template <class E>
using Exchange = std::conditional_t<sizeof(E) == 8, int64_t, int32_t>;

template <class E>
__device__ Exchange<E> row_magnitude(const Row<E>& row) {
  Exchange<E> largest = 0;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const Exchange<E> value = magnitude_of(row[i]);
    largest = value > largest ? value : largest;
  }
  return largest;
}

// The largest of a group's threads; each of them gets it.
template <class Integer>
__device__ Integer largest_of_group(Integer value, const GroupPlace& place) {
  place.for_each_merge([&](int lane) {
    const Integer other = __shfl_sync(0xFFFFFFFFu, value, lane);
    value = other > value ? other : value;
  });
  return value;
}

template <class E, class Format, class T = compute_t<E>>
struct Encoder {
  bool finite;
  bool stochastic;
  E bound;
  Float8Scale<T> group;

  __device__ Encoder(Exchange<E> largest, bool is_stochastic)
      : finite(largest < Magnitude<E>::infinity),
        stochastic(is_stochastic),
        bound(from_magnitude<E>(static_cast<magnitude_t<E>>(largest))),
        group(float8_scale<Format>(load(bound))) {}

  __device__ void store_bound(E* to) const {
    if (finite) {
      *to = bound;
    } else {
      store(to, static_cast<T>(NAN));
    }
  }

  // `position` is that of the row's first element in the tensor.
  __device__ PackedRow<8> operator()(const Row<E>& row, const NoiseKey& key, int64_t position) const {
    PackedRow<8> codes = {};
    if (!finite) return codes;
    RowNoise noise = {};
    if (stochastic) noise = aligned_noise(key, position);
    const int shift = stochastic ? kNoiseBits : 0;
    const Values<E> values(row);
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      const float y = static_cast<float>(values.value[i] * group.scale * group.factor);
      codes.put(i, static_cast<uint32_t>(float8_encode<Format>(y, noise[i], shift)));
    }
    return codes;
  }
};

// Groups of at most 32 rows: a tile is read once.
template <class E, class Format>
__global__ void __launch_bounds__(kWarps* kWarp) compress_kernel(Float8Compress args, GroupTiles tiles) {
  __shared__ WarpTile<E> memory[kWarps];
  WarpTile<E>& tile = memory[warp_index()];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  const int64_t first = index * tiles.elements;
  const int count = tile_count(args.numel - first, tiles.elements);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  const GroupPlace place(tiles);
  const Encoder<E, Format> encoder(largest_of_group(row_magnitude(row), place), args.stochastic);

  const int begin = place.row * kRow;  // of this thread's row
  if (place.begins_group() && begin < count) {
    encoder.store_bound(static_cast<E*>(args.bounds) + index * tiles.groups + place.group);
  }
  store_codes(tile, encoder(row, args.key, first + begin), args.codes + first, count);
}

// Groups of any number of rows: a block takes one group, and reads it twice, the second time from cache.
template <class E, class Format>
__global__ void __launch_bounds__(kGroupWarps<E>* kWarp) compress_group_kernel(Float8Compress args) {
  __shared__ WarpTile<E> tiles[kGroupWarps<E>];
  __shared__ Exchange<E> of_warp[kGroupWarps<E>];
  WarpTile<E>& tile = tiles[warp_index()];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t stride = static_cast<int64_t>(warps) * kTile;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * args.group_size;
  const int64_t end = args.numel - first < args.group_size ? args.numel : first + args.group_size;
  const int64_t mine = first + static_cast<int64_t>(warp_index()) * kTile;
  const E* input = static_cast<const E*>(args.input);

  Exchange<E> largest = 0;
  for (int64_t i = mine; i < end; i += stride) {
    const auto of_row = row_magnitude(load_row(tile, input + i, tile_count(end - i)));
    largest = of_row > largest ? of_row : largest;
  }
  largest = largest_of_group(largest, GroupPlace(GroupTiles(kTile)));
  if (lane_index() == 0) of_warp[warp_index()] = largest;
  __syncthreads();
  for (int w = 0; w < warps; ++w) largest = of_warp[w] > largest ? of_warp[w] : largest;

  const Encoder<E, Format> encoder(largest, args.stochastic);
  if (threadIdx.x == 0) encoder.store_bound(static_cast<E*>(args.bounds) + static_cast<int64_t>(blockIdx.x));
  for (int64_t i = mine; i < end; i += stride) {
    const int count = tile_count(end - i);
    const Row<E> row = load_row(tile, input + i, count);
    store_codes(tile, encoder(row, args.key, i + lane_index() * kRow), args.codes + i, count);
  }
}

template <class E, class Format>
__global__ void __launch_bounds__(kWarps* kWarp) decompress_kernel(Float8Decompress args, GroupTiles tiles) {
  __shared__ WarpTile<E> memory[kWarps];
  WarpTile<E>& tile = memory[warp_index()];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp_index();
  const int64_t first = index * tiles.elements;
  const int count = tile_count(args.numel - first, tiles.elements);
  if (count <= 0) return;

  const GroupPlace place(tiles);
  const int begin = place.row * kRow;
  int64_t of_group = index * tiles.groups + place.group;
  if (args.group_size > kTile) of_group = (first + begin) / args.group_size;
  const E bound = static_cast<const E*>(args.bounds)[begin < count ? of_group : 0];  // beyond the end: any
  const auto codes = load_codes<8>(tile, args.codes + first, count);
  const auto group = float8_scale<Format>(load(bound));

  Row<E> row;
  if (magnitude_of(bound) < Magnitude<E>::infinity) {
    Values<E> values;
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      values.value[i] = float8_decode<Format>(static_cast<int>(codes.get(i)), group);
    }
    row = values.row();
  } else {
    row = repeated(bound);
  }
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
}

template <class E, class Format>
cudaError_t compress(const Float8Compress& args, cudaStream_t stream) {
  if (args.group_size <= kTile) {
    const GroupTiles tiles(args.group_size);
    const int64_t blocks = blocks_for(tiles.count(args.numel), kWarps);
    return launch(compress_kernel<E, Format>, blocks, kWarps * kWarp, stream, args, tiles);
  }
  const int64_t tiles = blocks_for(args.group_size, kTile);
  const int warps = tiles < kGroupWarps<E> ? static_cast<int>(tiles) : kGroupWarps<E>;
  return launch(compress_group_kernel<E, Format>, blocks_for(args.numel, args.group_size), warps * kWarp, stream, args);
}

}  // namespace

cudaError_t float8_compress(const Float8Compress& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_format(args.format, [&]<class Format>() { return compress<E, Format>(args, stream); });
  });
}

cudaError_t float8_decompress(const Float8Decompress& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_format(args.format, [&]<class Format>() {
      const GroupTiles tiles(args.group_size);
      const int64_t blocks = blocks_for(tiles.count(args.numel), kWarps);
      return launch(decompress_kernel<E, Format>, blocks, kWarps * kWarp, stream, args, tiles);
    });
  });
}

}  // namespace actcore::cuda
