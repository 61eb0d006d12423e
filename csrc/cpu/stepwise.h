// Interval codes and their levels on the CPU. The function values themselves come from torch's own operators
// (csrc/ops/cpu/stepwise.cpp), chunk by chunk, so that a chunk is coded while it is in cache.
#pragma once

#include "codec/stepwise.h"
#include "cpu/bits.h"
#include "cpu/guard.h"
#include "cpu/simd.h"
#include "cpu/table.h"

namespace actcore::ACTCORE_ISA {

// Up to this width, a comparison with every boundary is faster than a search.
#if defined(__AVX2__)
constexpr int kCompareBits = 3;
#else
constexpr int kCompareBits = 4;
#endif

// Boundaries laid out for the search of `bits` steps. Those that are missing up to 2^bits - 1 are infinity.
template <class T, int bits>
struct Boundaries {
  int count;
  T sorted[1 << bits];
  // Level l of the search has 2^l candidates, from kLanes * l on: where l steps took the code, the next boundary.
  T level[bits][(1 << bits) / 2 < kLanes ? kLanes : (1 << bits) / 2];

  Boundaries(const T* given, int count) : count(count), sorted{}, level{} {
    for (int i = 0; i < 1 << bits; ++i) sorted[i] = i < count ? given[i] : static_cast<T>(INFINITY);
    for (int l = 0; l < bits; ++l) {
      const int step = 1 << (bits - l);
      for (int i = 0; i < 1 << l; ++i) level[l][i] = sorted[i * step + step / 2 - 1];
    }
  }
};

template <class T>
ACTCORE_FN Vec<int32_t> all_ones_where(Vec<T> a, Vec<T> b) {  // a < b
  if constexpr (sizeof(T) == 4)
    return (Vec<int32_t>)(a < b);
  else
    return __builtin_convertvector(a < b, Vec<int32_t>);
}

// code - 1 in the lanes where x < boundary.
template <class T>
ACTCORE_FN Vec<int32_t> count_down(Vec<int32_t> code, Vec<T> x, Vec<T> boundary) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {  // GCC makes a vector of the mask and adds that
    const __mmask16 below = _mm512_cmp_ps_mask((__m512)x, (__m512)boundary, _CMP_LT_OQ);
    return (Vec<int32_t>)_mm512_mask_sub_epi32((__m512i)code, below, (__m512i)code, _mm512_set1_epi32(1));
  }
#endif
  return code + all_ones_where<T>(x, boundary);
}

// Count down from all of them: NaN is below no boundary.
template <class T, int bits, int known>
ACTCORE_FN Vec<int32_t> compare_all(Vec<T> x, const Boundaries<T, bits>& boundaries) {
  Vec<int32_t> code = broadcast<int32_t>(boundaries.count);
  if constexpr (known != 0) {
#pragma GCC unroll 15
    for (int i = 0; i < known; ++i) code = count_down<T>(code, x, broadcast(boundaries.sorted[i]));
  } else {
    for (int i = 0; i < boundaries.count; ++i) code = count_down<T>(code, x, broadcast(boundaries.sorted[i]));
  }
  return code;
}

template <class T, int bits>
ACTCORE_FN Vec<int32_t> search(Vec<T> x, const Boundaries<T, bits>& boundaries) {
  Vec<int32_t> code = {};
#pragma GCC unroll 8
  for (int l = 0; l < bits; ++l) {
    const T* level = boundaries.level[l];
    const Vec<T> boundary = [&] {
      if (l <= 3) return pick<3>(level, code);
      if (l == 4) return pick<4>(level, code);
      if (l == 5) return pick<5>(level, code);
      if (l == 6) return pick<6>(level, code);
      return pick<7>(level, code);
    }();
    code = code + code + 1 + all_ones_where<T>(x, boundary);
  }
  const Vec<int32_t> last = broadcast<int32_t>(boundaries.count);  // infinity and NaN pass the boundaries that miss
  return code < last ? code : last;
}

// Elements without the bits that `kept` lacks: the sign, or none.
template <class T>
ACTCORE_FN Vec<T> keep_bits(Vec<T> x, Vec<typename Pattern<T>::Word> kept) {
  return (Vec<T>)((Vec<typename Pattern<T>::Word>)x & kept);
}

template <class E, int bits, int known, class T = compute_t<E>>
ACTCORE_FN void code_tile(const E* x, int64_t count, const Boundaries<T, bits>& boundaries, bool even, uint8_t* codes) {
  using Word = typename Pattern<T>::Word;
  const Vec<Word> kept = broadcast<Word>(even ? static_cast<Word>(~Pattern<T>::sign) : static_cast<Word>(~Word{0}));
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    if constexpr (bits <= kCompareBits) {
      store_codes(codes + j, compare_all<T, bits, known>(keep_bits<T>(load(x + j), kept), boundaries));
    } else {
      store_codes(codes + j, search<T, bits>(keep_bits<T>(load(x + j), kept), boundaries));
    }
  }
  for (int64_t j = whole; j < count; ++j) {
    const T value = actcore::load(x[j]);
    codes[j] = static_cast<uint8_t>(
        interval_of(even ? actcore::magnitude(value) : value, boundaries.sorted, boundaries.count));
  }
}

template <class E, int bits, int known>
ACTCORE_FN void code_range(const StepwiseCodes& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  const Boundaries<T, bits> boundaries(static_cast<const T*>(args.boundaries), args.boundary_count);
  const E* x = static_cast<const E*>(args.input);
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    if (args.guards != nullptr && i % kStretch == 0) {
      args.guards[i / kStretch] = guard_byte<E>(x, i, end - i < kStretch ? end - i : kStretch, args.guard);
    }
    const int64_t count = tile_at(i, end);
    if (count == kTile) {
      code_tile<E, bits, known>(x + i, kTile, boundaries, args.even, tile);
      pack_tile<bits>(tile, kTile, args.codes + packed_bytes(i, bits));
    } else {
      code_tile<E, bits, known>(x + i, count, boundaries, args.even, tile);
      pack_tile<bits>(tile, count, args.codes + packed_bytes(i, bits));
    }
  }
}

template <class E, int bits>
void stepwise_codes(const StepwiseCodes& args, int64_t begin, int64_t end) {
  constexpr int all = (1 << bits) - 1;
  if constexpr (bits <= kCompareBits) {  // a full table keeps its boundaries in registers
    if (args.boundary_count == all) return code_range<E, bits, all>(args, begin, end);
  }
  code_range<E, bits, 0>(args, begin, end);
}

template <class E, int bits>
void stepwise_backward(const StepwiseBackward& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  constexpr int size = (1 << bits) < kLanes ? kLanes : 1 << bits;
  T table[size];
  for (int i = 0; i < size; ++i) {
    table[i] = i < args.level_count ? static_cast<const T*>(args.levels)[i] : static_cast<T>(NAN);
  }
  const E* gradient = static_cast<const E*>(args.gradient);
  E* out = static_cast<E*>(args.output);
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end), whole = count / kLanes * kLanes;
    if (args.guards != nullptr && args.guards[i / kStretch] != 0) {
      for (int64_t j = 0; j < count; ++j) actcore::store(out + i + j, static_cast<T>(NAN));
      continue;
    }
    unpack_tile<bits>(args.codes + packed_bytes(i, bits), count, tile);
    for (int64_t j = 0; j < whole; j += kLanes) {
      store(out + i + j, load(gradient + i + j) * pick<bits>(table, load_codes(tile + j)));
    }
    for (int64_t j = whole; j < count; ++j) {
      actcore::store(out + i + j, actcore::load(gradient[i + j]) * table[tile[j]]);
    }
  }
}

}  // namespace actcore::ACTCORE_ISA
