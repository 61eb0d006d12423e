// The group-affine codec on CUDA: bit for bit what csrc/cpu computes. A thread takes a row of 32 elements, so a group
// is group_size / 32 threads.
#pragma once

#include "codec/arguments.h"
#include "codec/group_affine.h"
#include "cuda/row_noise.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

constexpr int kWarps = 4;

// Warps that share a group longer than a tile: as many as keep 32 KiB of tiles.
template <class E>
constexpr int kGroupWarps = 32 * 1024 / static_cast<int>(sizeof(WarpTile<E>));

// `high` is infinite where an element is not finite. The identity of merging is {infinity, -infinity}.
template <class T>
struct Bounds {
  T low;
  T high;

  __device__ void merge(T other_low, T other_high) {
    low = fmin(low, other_low);
    high = fmax(high, other_high);
  }

  // Merges those of `lanes` neighbouring threads, a power of two; each of them gets the result.
  __device__ void merge_lanes(int lanes) {
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      merge(__shfl_xor_sync(0xFFFFFFFFu, low, offset), __shfl_xor_sync(0xFFFFFFFFu, high, offset));
    }
  }

  __device__ bool finite() const { return high < T(INFINITY); }
};

template <class E, class T = compute_t<E>>
__device__ Bounds<T> row_bounds(const Row<E>& row) {
  Bounds<T> bounds = {load(row[0]), load(row[0])};
  T poison = 0;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const T value = load(row[i]);
    bounds.merge(value, value);
    poison = fused_multiply_add(value, T(0), poison);
  }
  // A finite value times zero is zero; fmin and fmax pass over NaN.
  if (!(poison == T(0))) bounds.high = T(INFINITY);
  return bounds;
}

// A group's bounds, as stored and as encoding needs them. `anywhere`: rows may begin inside a block of noise.
template <class E, int bits, bool anywhere, class T = compute_t<E>>
struct Encoder {
  bool finite;
  bool stochastic;
  T low;
  T factor;
  GroupScale<T> group;

  // Adding a positive zero turns a negative one into it.
  __device__ Encoder(const Bounds<T>& bounds, bool is_stochastic)
      : finite(bounds.finite()),
        stochastic(is_stochastic),
        low(bounds.low + T(0)),
        group(group_scale(low, bounds.high + T(0))) {
    factor = encode_factor(group, (1 << bits) - 1, stochastic);
  }

  __device__ void store_bounds(E* to) const {
    store(to, finite ? low : static_cast<T>(NAN));
    store(to + 1, finite ? group.high : static_cast<T>(NAN));
  }

  // `position` is that of the row's first element in the sequence of noise.
  __device__ PackedRow<bits> operator()(const Row<E>& row, const NoiseKey& key, int64_t position) const {
    PackedRow<bits> codes = {};
    if (!finite) return codes;
    RowNoise noise = {};
    if (stochastic) noise = anywhere ? noise_at(key, position) : aligned_noise(key, position);
    const int shift = stochastic ? kNoiseBits : 0;
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      codes.put(i, static_cast<uint32_t>(encode(load(row[i]), group, factor, noise[i], shift)));
    }
    return codes;
  }
};

// Compresses the tile that starts at `first`, in groups of 1, 2, 4, ..., 32 rows: it holds whole groups, and is read
// once. `log2_rows` is that number's. Called by whole warps.
template <class E, int bits, bool anywhere>
__device__ void compress_tile(WarpTile<E>& tile, const GroupAffineCompress& args, int64_t first, int log2_rows) {
  const int count = tile_count(args.numel - first);
  const Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  auto bounds = row_bounds(row);
  const int rows = 1 << log2_rows;
  bounds.merge_lanes(rows);
  const Encoder<E, bits, anywhere> encoder(bounds, args.stochastic);

  const int64_t begin = first + lane_index() * kRow;  // of this thread's row
  if ((lane_index() & (rows - 1)) == 0 && begin < args.numel) {
    encoder.store_bounds(static_cast<E*>(args.bounds) + 2 * (begin / kRow >> log2_rows));
  }
  store_codes(tile, encoder(row, args.key, args.position + begin), args.codes + packed_bytes(first, bits), count);
}

// What a block shares that compresses one group.
template <class E>
struct GroupMemory {
  WarpTile<E> tiles[kGroupWarps<E>];
  Bounds<compute_t<E>> of_warp[kGroupWarps<E>];
};

// Compresses group `index`, of any number of rows, which is read twice, the second time from cache. Called by whole
// blocks.
template <class E, int bits, bool anywhere>
__device__ void compress_group(GroupMemory<E>& memory, const GroupAffineCompress& args, int64_t index) {
  using T = compute_t<E>;
  WarpTile<E>& tile = memory.tiles[warp_index()];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t stride = static_cast<int64_t>(warps) * kTile;
  const int64_t first = index * args.group_size;
  const int64_t end = args.numel - first < args.group_size ? args.numel : first + args.group_size;
  const int64_t mine = first + static_cast<int64_t>(warp_index()) * kTile;
  const E* input = static_cast<const E*>(args.input);

  Bounds<T> bounds = {T(INFINITY), -T(INFINITY)};
  for (int64_t i = mine; i < end; i += stride) {
    const auto row = row_bounds(load_row(tile, input + i, tile_count(end - i)));
    bounds.merge(row.low, row.high);
  }
  bounds.merge_lanes(kWarp);
  if (lane_index() == 0) memory.of_warp[warp_index()] = bounds;
  __syncthreads();
  for (int w = 0; w < warps; ++w) bounds.merge(memory.of_warp[w].low, memory.of_warp[w].high);

  const Encoder<E, bits, anywhere> encoder(bounds, args.stochastic);
  if (threadIdx.x == 0) encoder.store_bounds(static_cast<E*>(args.bounds) + 2 * index);
  for (int64_t i = mine; i < end; i += stride) {
    const int count = tile_count(end - i);
    const Row<E> row = load_row(tile, input + i, count);
    store_codes(tile, encoder(row, args.key, args.position + i + lane_index() * kRow),
                args.codes + packed_bytes(i, bits), count);
  }
}

// Decompresses the tile that starts at `first`. Called by whole warps.
template <class E, int bits>
__device__ void decompress_tile(WarpTile<E>& tile, const GroupAffineDecompress& args, int64_t first) {
  using T = compute_t<E>;
  constexpr int levels = (1 << bits) - 1;
  const int count = tile_count(args.numel - first);
  const auto codes = load_codes<bits>(tile, args.codes + packed_bytes(first, bits), count);
  const int begin = lane_index() * kRow;
  const int64_t known = first + (begin < count ? begin : 0);  // rows beyond the end have no group
  const E* bounds = static_cast<const E*>(args.bounds) + 2 * (known / args.group_size);
  const E high = bounds[1];
  const GroupScale<T> group = group_scale(load(bounds[0]), load(high));
  const T step = decode_step(group, levels);

  Row<E> row;
  if (group.high == group.high) {
#pragma unroll
    for (int i = 0; i < kRow; ++i) store(&row[i], decode(static_cast<int>(codes.get(i)), group, step, levels));
  } else {
    // Copied: a NaN out of arithmetic has other bits here than on the CPU.
#pragma unroll
    for (int i = 0; i < kRow; ++i) row[i] = high;
  }
  store_row(tile, row, static_cast<E*>(args.output) + first, count);
}

}  // namespace actcore::cuda
