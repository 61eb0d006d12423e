// The SIMD vocabulary of the CPU kernels: vectors of kLanes elements in the widest registers that the translation
// unit is compiled for. Each kernel file is compiled once per instruction set, with ACTCORE_ISA naming it.
//
// GCC's and Clang's vector extensions carry the arithmetic; intrinsics appear where an operation has none.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "codec/float16.h"
#include "codec/group_affine.h"

namespace actcore::ACTCORE_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Elements of a tile: what the kernels encode or decode between two visits of memory.
constexpr int kTile = 256;

template <class T, int lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * lanes)));
};
template <class T>
using Vec = typename VectorOf<T, kLanes>::type;
// As many 64-bit words as fill the same register as Vec<float>.
constexpr int kWords = kLanes / 2;
using Words = typename VectorOf<uint64_t, kWords>::type;

template <class V>
ACTCORE_FN V load_vec(const void* from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <class V>
ACTCORE_FN void store_vec(void* to, V value) {
  memcpy(to, &value, sizeof value);
}

template <class T>
ACTCORE_FN Vec<T> broadcast(T value) {
  return Vec<T>{} + value;
}

// ---- elements in memory to vectors of their compute type, and back ----

ACTCORE_FN Vec<float> load(const float* from) { return load_vec<Vec<float>>(from); }
ACTCORE_FN Vec<double> load(const double* from) { return load_vec<Vec<double>>(from); }
ACTCORE_FN void store(float* to, Vec<float> value) { store_vec(to, value); }
ACTCORE_FN void store(double* to, Vec<double> value) { store_vec(to, value); }

ACTCORE_FN Vec<float> load(const BFloat16* from) {
  const Vec<uint32_t> wide = __builtin_convertvector(load_vec<Vec<uint16_t>>(from), Vec<uint32_t>) << 16;
  return load_vec<Vec<float>>(&wide);
}

// Only called for values that are finite or NaN.
ACTCORE_FN void store(BFloat16* to, Vec<float> value) {
  const Vec<uint32_t> bits = load_vec<Vec<uint32_t>>(&value);
  const Vec<uint32_t> rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Vec<uint32_t> is_nan = (Vec<uint32_t>)(value != value);
  store_vec(to, __builtin_convertvector(rounded | (is_nan & 0x7FC0u), Vec<uint16_t>));
}

ACTCORE_FN Vec<float> load(const Half* from) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Vec<float> value;
  for (int i = 0; i < kLanes; ++i) value[i] = to_float(from[i]);
  return value;
#endif
}

ACTCORE_FN void store(Half* to, Vec<float> value) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = to_half(value[i]);
#endif
}

// ---- codes, one a byte, to 32-bit lanes and back; GCC takes the generic conversions apart lane by lane ----

ACTCORE_FN Vec<int32_t> load_codes(const uint8_t* from) {
#if defined(__AVX512F__)
  return (Vec<int32_t>)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
  return (Vec<int32_t>)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  return __builtin_convertvector(load_vec<Vec<uint8_t>>(from), Vec<int32_t>);
#endif
}

// Codes are below 256.
ACTCORE_FN void store_codes(uint8_t* to, Vec<int32_t> codes) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)codes));
#elif defined(__AVX2__)
  const __m256i shorts = _mm256_packus_epi32((__m256i)codes, (__m256i)codes);
  const __m256i bytes = _mm256_packus_epi16(shorts, shorts);
  const int32_t halves[2] = {_mm256_extract_epi32(bytes, 0), _mm256_extract_epi32(bytes, 4)};
  memcpy(to, halves, sizeof halves);
#else
  store_vec(to, __builtin_convertvector(codes, Vec<uint8_t>));
#endif
}

// ---- arithmetic ----

// min and max return the second operand when either is NaN, as x86 does; NaN is looked for separately.
ACTCORE_FN Vec<float> min(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
ACTCORE_FN Vec<float> max(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
ACTCORE_FN Vec<double> min(Vec<double> a, Vec<double> b) { return a < b ? a : b; }
ACTCORE_FN Vec<double> max(Vec<double> a, Vec<double> b) { return a > b ? a : b; }

template <class T>
ACTCORE_FN Vec<T> multiply_add(Vec<T> a, Vec<T> b, Vec<T> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
  Vec<T> result;
  for (int i = 0; i < kLanes; ++i) result[i] = fused_multiply_add(a[i], b[i], c[i]);
  return result;
}

ACTCORE_FN Vec<int32_t> round_to_int(Vec<float> value) {
#if defined(__AVX512F__)
  return (Vec<int32_t>)_mm512_cvtps_epi32((__m512)value);
#elif defined(__AVX2__)
  return (Vec<int32_t>)_mm256_cvtps_epi32((__m256)value);
#elif defined(__SSE2__)
  return (Vec<int32_t>)_mm_cvtps_epi32((__m128)value);
#else
  Vec<int32_t> result;
  for (int i = 0; i < kLanes; ++i) result[i] = actcore::round_to_int(value[i]);
  return result;
#endif
}
ACTCORE_FN Vec<int32_t> round_to_int(Vec<double> value) {
  Vec<int32_t> result;
  for (int i = 0; i < kLanes; ++i) result[i] = actcore::round_to_int(value[i]);
  return result;
}

// Folds a vector to its smallest (or largest) lane, halving it each time.
template <class T, bool largest>
ACTCORE_FN T fold(Vec<T> value) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return largest ? _mm512_reduce_max_ps((__m512)value) : _mm512_reduce_min_ps((__m512)value);
  }
#endif
  T lane[kLanes];
  store_vec(lane, value);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      const bool take = largest ? lane[i + width] > lane[i] : lane[i + width] < lane[i];
      lane[i] = take ? lane[i + width] : lane[i];
    }
  }
  return lane[0];
}

// True when a lane is NaN.
template <class T>
ACTCORE_FN bool any_nan(Vec<T> value) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_UNORD_Q) != 0;
#endif
  bool found = false;
  for (int i = 0; i < kLanes; ++i) found |= value[i] != value[i];
  return found;
}

// The full products of the low halves of 64-bit lanes.
ACTCORE_FN Words multiply_low_halves(Words a, uint32_t b) {
#if defined(__AVX512F__)
  return (Words)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Words)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
  return (Words)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
  return (a & 0xFFFFFFFFull) * static_cast<uint64_t>(b);
#endif
}

}  // namespace actcore::ACTCORE_ISA
