// Stochastic rounding to levels on the CPU: a pass over the derivative, and one over the input for the guard.
#pragma once

#include "codec/levels.h"
#include "cpu/noise.h"
#include "cpu/stepwise.h"

namespace actcore::ACTCORE_ISA {

// Below which level a derivative lies decides between the inner ones: the first and the last bound nothing.
template <class T, int bits>
struct LevelTable {
  static constexpr int kSize = (1 << bits) < kLanes ? kLanes : 1 << bits;
  Boundaries<T, bits> inner;
  T low[kSize];
  T steps[kSize];

  explicit LevelTable(const LevelCodes& args)
      : inner(static_cast<const T*>(args.levels) + 1, args.level_count - 2), low{}, steps{} {
    const T* levels = static_cast<const T*>(args.levels);
    for (int i = 0; i + 1 < args.level_count; ++i) {
      low[i] = levels[i];
      steps[i] = steps_per_unit(levels[i], levels[i + 1]);
    }
  }
};

template <class E, int bits, class T = compute_t<E>>
ACTCORE_FN void level_tile(const E* derivative, int64_t count, const LevelTable<T, bits>& table, const uint16_t* noise,
                           uint8_t* codes) {
  const Vec<T> least = {}, most = broadcast(T(kHalfSteps));
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    const Vec<T> value = load(derivative + j);
    Vec<int32_t> code;
    if constexpr (bits <= kCompareBits) {
      code = compare_all<T, bits, 0>(value, table.inner);
    } else {
      code = search<T, bits>(value, table.inner);
    }
    const Vec<T> steps = (value - pick<bits>(table.low, code)) * pick<bits>(table.steps, code);
    const Vec<int32_t> threshold = round_to_int(min(max(steps, least), most));
    const Vec<int32_t> drawn = __builtin_convertvector(load_vec<Vec<uint16_t>>(noise + j), Vec<int32_t>);
    store_codes(codes + j, code - (Vec<int32_t>)(drawn < threshold));
  }
  for (int64_t j = whole; j < count; ++j) {
    const T value = actcore::load(derivative[j]);
    const int code = interval_of(value, table.inner.sorted, table.inner.count);
    codes[j] = static_cast<uint8_t>(code + (noise[j] < rounding_threshold(value, table.low[code], table.steps[code])));
  }
}

template <class E, int bits>
void level_codes(const LevelCodes& args, int64_t begin, int64_t end) {
  const LevelTable<compute_t<E>, bits> table(args);
  const E* derivative = static_cast<const E*>(args.derivative);
  const uint64_t seed = args.seed + (args.draw != nullptr ? static_cast<uint64_t>(*args.draw) : 0);
  alignas(64) uint16_t noise[kTile];
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    if (args.guards != nullptr && i % kStretch == 0) {
      const int64_t stretch = end - i < kStretch ? end - i : kStretch;
      args.guards[i / kStretch] =
          guard_byte<E>(args.derivative, i, stretch, args.guard) | guard_byte<E>(args.input, i, stretch, args.guard);
    }
    const int64_t count = tile_at(i, end);
    fill_noise_halves(seed, args.stream, i, noise);
    level_tile<E, bits>(derivative + i, count, table, noise, tile);
    pack_tile<bits>(tile, count, args.codes + packed_bytes(i, bits));
  }
}

}  // namespace actcore::ACTCORE_ISA
