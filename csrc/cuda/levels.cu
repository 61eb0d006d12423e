// Stochastic rounding to levels on CUDA. Levels and what is computed of them are in shared memory.
#include "codec/levels.h"

#include "codec/dispatch.h"
#include "cuda/fused.h"
#include "cuda/guard.cuh"
#include "cuda/launch.cuh"
#include "cuda/tables.cuh"
#include "cuda/warp_codes.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
// How a derivative between two levels is rounded: the lower one, and the steps of noise from it to the next.
template <class T>
struct alignas(2 * sizeof(T)) Level {
  T low, steps;
};

template <class E, int bits>
__global__ void __launch_bounds__(kThreads) level_codes_kernel(LevelCodes args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T boundaries[1 << bits];
  __shared__ Level<T> levels[1 << bits];
  const T* given = static_cast<const T*>(args.levels);
  const int inner = args.level_count - 2;  // the first and the last level bound nothing
  for (int i = static_cast<int>(threadIdx.x); i < args.level_count; i += kThreads) {
    levels[i] = {given[i], i + 1 < args.level_count ? steps_per_unit(given[i], given[i + 1]) : T(0)};
  }
  load_table<kThreads>(boundaries, given + 1, inner, 1 << bits, static_cast<T>(INFINITY));
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, static_cast<const E*>(args.derivative) + first, count);
  if (args.guards != nullptr) {
    const Row<E> input = load_row(tile, static_cast<const E*>(args.input) + first, count);
    store_guard(is_guarded(row, args.guard) || is_guarded(input, args.guard), args.guards, first);
  }
  T value[kRow];
#pragma unroll
  for (int i = 0; i < kRow; ++i) value[i] = load(row[i]);
  int codes[kRow];
  find_intervals<bits>(value, boundaries, inner, bits, codes);
  const uint64_t seed = args.seed + (args.draw != nullptr ? static_cast<uint64_t>(*args.draw) : 0);
  const auto block = static_cast<uint64_t>(first + lane_index() * kRow) / kHalfBlock;
#pragma unroll
  for (int b = 0; b < kRow / kHalfBlock; ++b) {
    const PhiloxBlock noise = philox(seed, args.stream, block + static_cast<uint64_t>(b));
#pragma unroll
    for (int i = 0; i < kHalfBlock; ++i) {
      const int at = b * kHalfBlock + i;
      const Level<T> level = levels[codes[at]];
      const int threshold = rounding_threshold(value[at], level.low, level.steps);
      codes[at] += static_cast<int>(noise_half(noise, i)) < threshold ? 1 : 0;
    }
  }
  store_codes(tile, packed_row<bits>(codes), args.codes + packed_bytes(first, bits), count);
}

}  // namespace

cudaError_t level_codes(const LevelCodes& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_bits(args.bits, [&]<int bits>() {
      return launch(level_codes_kernel<E, bits>, blocks_for(args.numel, kWarps * kTile), kThreads, stream, args);
    });
  });
}

}  // namespace actcore::cuda
