// The group-affine codec on CUDA: bit for bit what csrc/cpu computes. A thread takes a row of 32 elements, so a group
// is group_size / 32 threads.
#include "codec/group_affine.h"

#include <bit>

#include "codec/dispatch.h"
#include "codec/philox.h"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

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

// A group's bounds, as stored and as encoding needs them.
template <class E, int bits, class T = compute_t<E>>
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

  // `position` is that of the row's first element in the tensor.
  __device__ PackedRow<bits> operator()(const Row<E>& row, uint64_t seed, uint64_t stream, int64_t position) const {
    PackedRow<bits> codes = {};
    if (!finite) return codes;
    PhiloxBlock noise[kRow / kNoiseBlock] = {};
    if (stochastic) {
#pragma unroll
      for (int b = 0; b < kRow / kNoiseBlock; ++b) {
        noise[b] = philox(seed, stream, static_cast<uint64_t>(position) / kNoiseBlock + static_cast<uint64_t>(b));
      }
    }
    const int shift = stochastic ? kNoiseBits : 0;
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      const int random = noise_byte(noise[i / kNoiseBlock], i % kNoiseBlock);
      codes.put(i, static_cast<uint32_t>(encode(load(row[i]), group, factor, random, shift)));
    }
    return codes;
  }
};

// Groups of 1, 2, 4, ..., 32 rows: a tile holds whole groups, and is read once. `log2_rows` is that number's.
template <class E, int bits>
__global__ void __launch_bounds__(kWarps* kWarp) compress_kernel(GroupAffineCompress args, int log2_rows) {
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, static_cast<const E*>(args.input) + first, count);
  auto bounds = row_bounds(row);
  const int rows = 1 << log2_rows;
  bounds.merge_lanes(rows);
  const Encoder<E, bits> encoder(bounds, args.stochastic);

  const int64_t begin = first + lane_index() * kRow;  // of this thread's row
  if ((lane_index() & (rows - 1)) == 0 && begin < args.numel) {
    encoder.store_bounds(static_cast<E*>(args.bounds) + 2 * (begin / kRow >> log2_rows));
  }
  store_codes(tile, encoder(row, args.seed, args.stream, begin), args.codes + packed_bytes(first, bits), count);
}

// Groups of any number of rows: a block takes one group, and reads it twice, the second time from cache.
template <class E, int bits>
__global__ void __launch_bounds__(kGroupWarps<E>* kWarp) compress_group_kernel(GroupAffineCompress args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kGroupWarps<E>];
  __shared__ Bounds<T> of_warp[kGroupWarps<E>];
  WarpTile<E>& tile = tiles[warp_index()];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t stride = static_cast<int64_t>(warps) * kTile;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * args.group_size;
  const int64_t end = args.numel - first < args.group_size ? args.numel : first + args.group_size;
  const int64_t mine = first + static_cast<int64_t>(warp_index()) * kTile;
  const E* input = static_cast<const E*>(args.input);

  Bounds<T> bounds = {T(INFINITY), -T(INFINITY)};
  for (int64_t i = mine; i < end; i += stride) {
    const auto row = row_bounds(load_row(tile, input + i, tile_count(end - i)));
    bounds.merge(row.low, row.high);
  }
  bounds.merge_lanes(kWarp);
  if (lane_index() == 0) of_warp[warp_index()] = bounds;
  __syncthreads();
  for (int w = 0; w < warps; ++w) bounds.merge(of_warp[w].low, of_warp[w].high);

  const Encoder<E, bits> encoder(bounds, args.stochastic);
  if (threadIdx.x == 0) encoder.store_bounds(static_cast<E*>(args.bounds) + 2 * static_cast<int64_t>(blockIdx.x));
  for (int64_t i = mine; i < end; i += stride) {
    const int count = tile_count(end - i);
    const Row<E> row = load_row(tile, input + i, count);
    store_codes(tile, encoder(row, args.seed, args.stream, i + lane_index() * kRow), args.codes + packed_bytes(i, bits),
                count);
  }
}

template <class E, int bits>
__global__ void __launch_bounds__(kWarps* kWarp) decompress_kernel(GroupAffineDecompress args) {
  using T = compute_t<E>;
  constexpr int levels = (1 << bits) - 1;
  __shared__ WarpTile<E> tiles[kWarps];
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

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

template <class E, int bits>
cudaError_t compress(const GroupAffineCompress& args, cudaStream_t stream) {
  const int64_t rows = args.group_size / kRow;
  if (rows <= kWarp && std::has_single_bit(static_cast<uint64_t>(rows))) {
    return launch(compress_kernel<E, bits>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args,
                  std::countr_zero(static_cast<uint64_t>(rows)));
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
      return launch(decompress_kernel<E, bits>, blocks_for(args.numel, kWarps * kTile), kWarps * kWarp, stream, args);
    });
  });
}

}  // namespace actcore::cuda
