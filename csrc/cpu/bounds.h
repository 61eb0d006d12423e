// The bounds of a group of elements on the CPU, as they are or clamped.
#pragma once

#include <bit>

#include "codec/arguments.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

template <class T>
struct Bounds {
  T low;
  T high;
  bool finite;
};

// The bounds of `count` > 0 elements. Adding a positive zero turns a negative one into it.
template <class E, class T = compute_t<E>>
ACTCORE_FN Bounds<T> find_bounds(const E* x, int64_t count) {
  const T first = actcore::load(x[0]);
  Vec<T> low = broadcast(first), high = low, poison = {};
  Vec<T> low2 = low, high2 = low, poison2 = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const Vec<T> a = load(x + i), b = load(x + i + kLanes);
    low = min(a, low), high = max(a, high), poison = multiply_add<T>(a, Vec<T>{}, poison);
    low2 = min(b, low2), high2 = max(b, high2), poison2 = multiply_add<T>(b, Vec<T>{}, poison2);
  }
  T lowest = fold<T, false>(min(low, low2)), highest = fold<T, true>(max(high, high2));
  // A finite value times zero is zero; what is left is NaN for infinities and NaN.
  T rest = first * T(0);
  for (; i < count; ++i) {
    const T value = actcore::load(x[i]);
    lowest = value < lowest ? value : lowest;
    highest = value > highest ? value : highest;
    rest += value * T(0);
  }
  const bool finite = !any_nan<T>(poison + poison2) && rest == T(0);
  return {lowest + T(0), highest + T(0), finite};
}

#if defined(__AVX512BW__)
// The order of bfloat16 as that of integers, and back: of a negative number all bits but the sign are turned over.
ACTCORE_FN __m512i in_order(__m512i bits) {
  constexpr int kFirstButBothOthers = 0x78;  // a ^ (b & c)
  return _mm512_ternarylogic_epi32(bits, _mm512_srai_epi16(bits, 15), _mm512_set1_epi16(0x7FFF), kFirstButBothOthers);
}

// The least of 32 signed integers.
ACTCORE_FN int16_t least_of(__m512i values) {
  const __m256i half = _mm256_min_epi16(_mm512_castsi512_si256(values), _mm512_extracti64x4_epi64(values, 1));
  const __m128i quarter = _mm_min_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i biased = _mm_xor_si128(quarter, _mm_set1_epi16(INT16_MIN));  // minpos knows unsigned ones only
  return static_cast<int16_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(biased)) ^ 0x8000);
}

// The bounds of `count` > 0 elements in bfloat16, 32 at a time. Infinities and NaN come before and after all other
// numbers.
ACTCORE_FN Bounds<float> find_bounds(const BFloat16* x, int64_t count) {
  constexpr int kWidth = 2 * kLanes;
  constexpr int16_t kInfinite = 0x7F80;
  __m512i low = _mm512_set1_epi16(INT16_MAX), high = _mm512_set1_epi16(INT16_MIN), low2 = low, high2 = high;
  int64_t i = 0;
  for (; i + 2 * kWidth <= count; i += 2 * kWidth) {
    const __m512i a = in_order(_mm512_loadu_si512(x + i)), b = in_order(_mm512_loadu_si512(x + i + kWidth));
    low = _mm512_min_epi16(a, low), high = _mm512_max_epi16(a, high);
    low2 = _mm512_min_epi16(b, low2), high2 = _mm512_max_epi16(b, high2);
  }
  for (; i < count; i += kWidth) {
    const __mmask32 there = count - i < kWidth ? (uint32_t{1} << (count - i)) - 1 : ~uint32_t{0};
    const __m512i a = in_order(_mm512_maskz_loadu_epi16(there, x + i));
    low = _mm512_mask_min_epi16(low, there, a, low), high = _mm512_mask_max_epi16(high, there, a, high);
  }
  const int16_t least = least_of(_mm512_min_epi16(low, low2));
  const int16_t most = ~least_of(_mm512_andnot_si512(_mm512_max_epi16(high, high2), _mm512_set1_epi16(-1)));
  const auto value = [](int16_t ordered) {
    const auto bits = static_cast<uint16_t>(ordered < 0 ? ordered ^ 0x7FFF : ordered);
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  };
  return {value(least) + 0.0f, value(most) + 0.0f, least > ~kInfinite && most < kInfinite};
}
#endif

// What elements beyond two bounds are taken for, in the type of the elements.
template <class E, class T = compute_t<E>>
struct Clamp {
  explicit Clamp(const GroupAffineCompress& args) {
    E least, most;
    actcore::store(&least, static_cast<T>(args.least));
    actcore::store(&most, static_cast<T>(args.most));
    low = actcore::load(least), high = actcore::load(most);
  }
  T operator()(T value) const { return value < low ? low : value > high ? high : value; }
  T low;
  T high;
};

// The bounds of `count` > 0 elements as they are clamped, which infinities are, too.
template <class E, class T = compute_t<E>>
ACTCORE_FN Bounds<T> find_clamped_bounds(const E* x, int64_t count, const Clamp<E>& clamp) {
  Vec<T> low = broadcast(clamp.high), high = broadcast(clamp.low), poison = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec<T> value = load(x + i);
    low = min(value, low), high = max(value, high);  // the second operand where the value is NaN
    const Vec<T> inside = min(max(value, broadcast(clamp.low)), broadcast(clamp.high));
    poison = poison + (value == value ? inside * Vec<T>{} : value);
  }
  T lowest = fold<T, false>(low), highest = fold<T, true>(high), rest = T(0);
  for (; i < count; ++i) {
    const T value = actcore::load(x[i]);
    lowest = value < lowest ? value : lowest;
    highest = value > highest ? value : highest;
    rest += clamp(value) * T(0);
  }
  return {clamp(lowest) + T(0), clamp(highest) + T(0), !any_nan<T>(poison) && rest == T(0)};
}

template <class E, class T = compute_t<E>>
ACTCORE_FN void clamp_tile(const E* x, int64_t count, const Clamp<E>& clamp, E* out) {
  const Vec<T> low = broadcast(clamp.low), high = broadcast(clamp.high);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, min(max(load(x + i), low), high));
  for (int64_t i = whole; i < count; ++i) actcore::store(out + i, clamp(actcore::load(x[i])));
}

}  // namespace actcore::ACTCORE_ISA
