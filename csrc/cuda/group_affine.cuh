// The group-affine codec on CUDA: bit for bit what csrc/cpu computes. A thread takes a row of 32 elements, so a group
// is group_size / 32 threads.
#pragma once

#include <type_traits>

#include "codec/arguments.h"
#include "codec/group_affine.h"
#include "cuda/group_tiles.cuh"
#include "cuda/intrinsics.cuh"
#include "cuda/row_codes.cuh"
#include "cuda/row_noise.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

constexpr int kWarps = 4;

// Warps that share a group longer than a tile: as many as keep 16 KiB of tiles, of which a processor holds 13.
template <class E>
constexpr int kGroupWarps = 16 * 1024 / static_cast<int>(sizeof(WarpTile<E>));

// Both are NaN where an element is. The identity of merging is {infinity, -infinity}.
template <class T>
struct Bounds {
  T low;
  T high;

  __device__ void merge(T other_low, T other_high) {
    low = min_or_nan(low, other_low);
    high = max_or_nan(high, other_high);
  }

  __device__ void merge(const GroupPlace& place) {
    place.for_each_merge(
        [this](int lane) { merge(__shfl_sync(0xFFFFFFFFu, low, lane), __shfl_sync(0xFFFFFFFFu, high, lane)); });
  }

  __device__ bool finite() const { return low > -T(INFINITY) && high < T(INFINITY); }
};

template <class E, class T = compute_t<E>>
__device__ Bounds<T> row_bounds(const Row<E>& row) {
  if constexpr (sizeof(E) == 2) {
    uint32_t low = Values<E>::pair_of(row, 0), high = low;
#pragma unroll
    for (int i = 2; i < kRow; i += 2) {
      const uint32_t pair = Values<E>::pair_of(row, i);
      low = Pair<E>::min(low, pair);
      high = Pair<E>::max(high, pair);
    }
    return {min_or_nan(Pair<E>::first(low), Pair<E>::second(low)),
            max_or_nan(Pair<E>::first(high), Pair<E>::second(high))};
  } else {
    Bounds<T> bounds = {row[0], row[0]};
#pragma unroll
    for (int i = 1; i < kRow; ++i) bounds.merge(row[i], row[i]);
    return bounds;
  }
}

// Those of the finite elements alone: the identity of merging where there are none.
template <class E, class T = compute_t<E>>
__device__ Bounds<T> finite_row_bounds(const Row<E>& row) {
  Bounds<T> bounds = {T(INFINITY), -T(INFINITY)};
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const T value = load(row[i]);
    if (is_finite(value)) bounds.merge(value, value);
  }
  return bounds;
}

// Where the codes of the row that begins with element `first` lie; a row's codes are whole words.
template <class Byte>
__device__ Byte* row_codes(Byte* codes, int64_t first, int bits) {
  return codes + (first >> 3) * bits;
}

// A group's bounds, as stored and as encoding needs them. `anywhere`: rows may begin inside a block of noise.
template <class E, int bits, bool anywhere, class T = compute_t<E>>
struct Encoder {
  bool broken;
  bool kept;  // whether finite elements are stored
  bool stochastic;
  T low;
  T factor;
  GroupScale<T> group;

  // Adding a positive zero turns a negative one into it.
  __device__ Encoder(const Bounds<T>& bounds, bool of_broken, bool is_stochastic)
      : broken(of_broken),
        kept(!of_broken || keeps_finite(bounds.low, bounds.high, bits)),
        stochastic(is_stochastic),
        low(bounds.low + T(0)),
        group(group_scale(low, bounds.high + T(0))) {
    factor = encode_factor(group, top_code(bits, broken), stochastic);
  }

  __device__ void store_bounds(E* to) const {
    E nan;
    store(&nan, static_cast<T>(NAN));
    E least, most;
    if constexpr (sizeof(E) == 2) {
      const uint32_t pair = Pair<E>::pack(low, group.high);
      least = E{static_cast<uint16_t>(pair)};
      most = E{static_cast<uint16_t>(pair >> 16)};
    } else {
      least = low;
      most = group.high;
    }
    if (!broken) {
      to[0] = least;
      to[1] = most;
    } else {
      to[0] = kept && low < group.high ? most : nan;
      to[1] = kept ? least : nan;
    }
  }

  // `position` is that of the row's first element in the sequence of noise.
  __device__ PackedRow<bits> operator()(const Row<E>& row, const NoiseKey& key, int64_t position) const {
    PackedRow<bits> codes = {};
    if (!kept) return codes;
    RowNoise noise = {};
    if (stochastic) noise = anywhere ? noise_at(key, position) : aligned_noise(key, position);
    if constexpr (std::is_same_v<T, float>) {
      if (!broken && group.scale == 1.0f) {
        return encode_row<bits>(Values<E>(row), group.origin, factor, noise, stochastic);
      }
    }
    const int shift = stochastic ? kNoiseBits : 0;
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      const T value = load(row[i]);
      const int code = is_finite(value) ? encode(value, group, factor, noise[i], shift) : top_code(bits, false);
      codes.put(i, static_cast<uint32_t>(code));
    }
    return codes;
  }
};

// Compresses tile `index` of the elements as a transform leaves them, which is read once. Called by whole warps.
template <class E, int bits, bool anywhere, class Transform = Identity>
__device__ void compress_tile(WarpTile<E>& tile, const GroupAffineCompress& args, int64_t index,
                              const GroupTiles& tiles, const Transform& transform = {}) {
  const int64_t first = index * tiles.elements;
  const int count = tile_count(args.numel - first, tiles.elements);
  const Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count, transform.at(first));
  auto bounds = row_bounds(row);
  const GroupPlace place(tiles);
  bounds.merge(place);
  const bool broken = !bounds.finite();
  if (__any_sync(0xFFFFFFFFu, broken)) {
    auto finite = finite_row_bounds(row);
    finite.merge(place);
    if (broken) bounds = finite;
  }
  const Encoder<E, bits, anywhere> encoder(bounds, broken, args.stochastic);

  const int begin = place.row * kRow;  // of this thread's row
  if (place.begins_group() && begin < count) {
    encoder.store_bounds(static_cast<E*>(args.bounds) + 2 * (index * tiles.groups + place.group));
  }
  store_codes(tile, encoder(row, args.key, args.position + first + begin), row_codes(args.codes, first, bits), count);
}

// What a block shares that compresses one group.
template <class E>
struct GroupMemory {
  WarpTile<E> tiles[kGroupWarps<E>];
  Bounds<compute_t<E>> of_warp[kGroupWarps<E>];
};

// Compresses group `index`, of any number of rows, which is read twice, the second time from cache. Called by whole
// blocks.
template <class E, int bits, bool anywhere, class Transform = Identity>
__device__ void compress_group(GroupMemory<E>& memory, const GroupAffineCompress& args, int64_t index,
                               const Transform& transform = {}) {
  using T = compute_t<E>;
  WarpTile<E>& tile = memory.tiles[warp_index()];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t stride = static_cast<int64_t>(warps) * kTile;
  const int64_t first = index * args.group_size;
  const int64_t end = args.numel - first < args.group_size ? args.numel : first + args.group_size;
  const int64_t mine = first + static_cast<int64_t>(warp_index()) * kTile;
  const E* input = static_cast<const E*>(args.input);

  const auto bounds_by = [&](const auto& of_row) {
    Bounds<T> bounds = {T(INFINITY), -T(INFINITY)};
    for (int64_t i = mine; i < end; i += stride) {
      const Bounds<T> row = of_row(load_row(tile, input + i, tile_count(end - i), transform.at(i)));
      bounds.merge(row.low, row.high);
    }
    bounds.merge(GroupPlace(GroupTiles(kTile)));
    if (lane_index() == 0) memory.of_warp[warp_index()] = bounds;
    __syncthreads();
    for (int w = 0; w < warps; ++w) bounds.merge(memory.of_warp[w].low, memory.of_warp[w].high);
    return bounds;
  };
  Bounds<T> bounds = bounds_by([](const Row<E>& row) { return row_bounds(row); });
  const bool broken = !bounds.finite();  // the same in the whole block
  if (broken) {
    __syncthreads();  // until here others may still read of_warp
    bounds = bounds_by([](const Row<E>& row) { return finite_row_bounds(row); });
  }

  const Encoder<E, bits, anywhere> encoder(bounds, broken, args.stochastic);
  if (threadIdx.x == 0) encoder.store_bounds(static_cast<E*>(args.bounds) + 2 * index);
  for (int64_t i = mine; i < end; i += stride) {
    const int count = tile_count(end - i);
    const Row<E> row = load_row(tile, input + i, count, transform.at(i));
    store_codes(tile, encoder(row, args.key, args.position + i + lane_index() * kRow), row_codes(args.codes, i, bits),
                count);
  }
}

// A row of a group whose bounds are finite, or at least not NaN.
template <int bits, class E, class T = compute_t<E>>
__device__ Row<E> decode_any(const PackedRow<bits>& codes, const GroupScale<T>& group, bool broken) {
  constexpr int levels = (1 << bits) - 1;
  const int top = top_code(bits, broken);
  const T step = broken ? decode_step(group, top_code(bits, true)) : decode_step(group, levels);
  if constexpr (std::is_same_v<T, float>) {
    if (!broken && group.unscale == 1.0f && (group.range == 0.0f || group.range >= Limits<float>::tiny)) {
      Values<E> row;
      if constexpr (sizeof(E) == 2) {
        // Rounded to 16 bits it mostly is; not where the upper bound is far smaller than the lower one.
        const float top = fused_multiply_add(static_cast<float>(levels), step, group.origin);
        if (Pair<E>::pack(top, 0) == Pair<E>::pack(group.high, 0)) {
          decode_row<bits, true>(row, codes, group.origin, step, group.high);
          return row.row();
        }
      }
      decode_row<bits, false>(row, codes, group.origin, step, group.high);
      return row.row();
    }
  }
  Row<E> row;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const int code = static_cast<int>(codes.get(i));
    store(&row[i], code > top ? static_cast<T>(NAN) : decode(code, group, step, top));
  }
  return row;
}

// Decompresses tile `index`, whose elements a transform changes before they are stored. Called by whole warps.
template <class E, int bits, class Transform = Identity>
__device__ void decompress_tile(WarpTile<E>& tile, const GroupAffineDecompress& args, int64_t index,
                                const GroupTiles& tiles, const Transform& transform = {}) {
  const int64_t first = index * tiles.elements;
  const int count = tile_count(args.numel - first, tiles.elements);
  const GroupPlace place(tiles);
  const int begin = place.row * kRow;
  int64_t of_group = index * tiles.groups + place.group;
  if (args.group_size > kTile) of_group = (first + begin) / args.group_size;
  const E* bounds = static_cast<const E*>(args.bounds) + (begin < count ? 2 * of_group : 0);  // beyond the end: any
  const E low = bounds[0], high = bounds[1];
  const auto codes = load_codes<bits>(tile, row_codes(args.codes, first, bits), count);
  const bool broken = is_broken(load(low), load(high));
  const auto group = broken ? broken_scale(load(low), load(high)) : group_scale(load(low), load(high));

  Row<E> row;
  if (group.high == group.high) {
    row = decode_any<bits, E>(codes, group, broken);
  } else {
    row = repeated(high);
  }
  store_row(tile, row, static_cast<E*>(args.output) + first, count, transform.at(first));
}

}  // namespace actcore::cuda
