// Tables of up to 256 values that are looked up by many lanes at once: in registers where they fit there.
#pragma once

#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// table[index], lane by lane; `table` has 2^bits entries and at least kLanes, each index is below 2^bits.
template <int bits>
ACTCORE_FN Vec<float> pick(const float* table, Vec<int32_t> index) {
#if defined(__AVX512F__)
  const __m512i at = (__m512i)index;
  if constexpr (bits <= 4) {
    return (Vec<float>)_mm512_permutexvar_ps(at, _mm512_loadu_ps(table));
  } else {
    // Registers in pairs: a permutation of two takes the low five bits of the index, the others choose the pair.
    __m512 found = _mm512_permutex2var_ps(_mm512_loadu_ps(table), at, _mm512_loadu_ps(table + 16));
    for (int pair = 1; pair < 1 << (bits - 5); ++pair) {
      const float* half = table + 32 * pair;
      const __mmask16 here = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(32 * pair));
      const __m512 other = _mm512_permutex2var_ps(_mm512_loadu_ps(half), at, _mm512_loadu_ps(half + 16));
      found = _mm512_mask_mov_ps(found, here, other);
    }
    return (Vec<float>)found;
  }
#elif defined(__AVX2__)
  const __m256i at = (__m256i)index;
  if constexpr (bits <= 3) return (Vec<float>)_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
  if constexpr (bits == 4) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
    return (Vec<float>)_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
  }
  return (Vec<float>)_mm256_i32gather_ps(table, at, 4);
#else
  Vec<float> found;
  for (int i = 0; i < kLanes; ++i) found[i] = table[index[i]];
  return found;
#endif
}

template <int bits>
ACTCORE_FN Vec<double> pick(const double* table, Vec<int32_t> index) {
  Vec<double> found;
  for (int i = 0; i < kLanes; ++i) found[i] = table[index[i]];
  return found;
}

}  // namespace actcore::ACTCORE_ISA
