// Stochastic rounding to levels on CUDA. Levels and what is computed of them are in shared memory.
#include "codec/levels.h"

#include "codec/dispatch.h"
#include "codec/stepwise.h"
#include "cuda/fused.h"
#include "cuda/guard.cuh"
#include "cuda/launch.cuh"
#include "cuda/warp_codes.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxLevels = 1 << kMaxBits;

template <class E>
__global__ void __launch_bounds__(kThreads) level_codes_kernel(LevelCodes args) {
  using T = compute_t<E>;
  __shared__ WarpTile<E> tiles[kWarps];
  __shared__ T levels[kMaxLevels], steps[kMaxLevels];
  const T* given = static_cast<const T*>(args.levels);
  for (int i = static_cast<int>(threadIdx.x); i < args.level_count; i += kThreads) {
    levels[i] = given[i];
    steps[i] = i + 1 < args.level_count ? steps_per_unit(given[i], given[i + 1]) : T(0);
  }
  __syncthreads();
  WarpTile<E>& tile = tiles[warp_index()];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp_index()) * kTile;
  const int count = tile_count(args.numel - first);
  if (count <= 0) return;

  const Row<E> row = load_row(tile, static_cast<const E*>(args.derivative) + first, count);
  if (args.guards != nullptr) {
    const Row<E> input = load_row(tile, static_cast<const E*>(args.input) + first, count);
    store_guard(is_guarded(row, args.guard) || is_guarded(input, args.guard), args.guards, first);
  }
  const uint64_t seed = args.seed + (args.draw != nullptr ? static_cast<uint64_t>(*args.draw) : 0);
  const auto block = static_cast<uint64_t>(first + lane_index() * kRow) / kHalfBlock;
  const int left = count - lane_index() * kRow;
  RowCodes codes = {};
#pragma unroll
  for (int b = 0; b < kRow / kHalfBlock; ++b) {
    const PhiloxBlock noise = philox(seed, args.stream, block + static_cast<uint64_t>(b));
#pragma unroll
    for (int i = 0; i < kHalfBlock; ++i) {
      const int at = b * kHalfBlock + i;
      if (at >= left) continue;
      const T value = load(row[at]);
      const int code = interval_of(value, levels + 1, args.level_count - 2);
      const int threshold = rounding_threshold(value, levels[code], steps[code]);
      codes.put(at, code + (static_cast<int>(noise_half(noise, i)) < threshold ? 1 : 0));
    }
  }
  store_row_codes(tile, codes, args.bits, args.codes + packed_bytes(first, args.bits), count);
}

}  // namespace

cudaError_t level_codes(const LevelCodes& args, cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(level_codes_kernel<E>, blocks_for(args.numel, kWarps * kTile), kThreads, stream, args);
  });
}

}  // namespace actcore::cuda
