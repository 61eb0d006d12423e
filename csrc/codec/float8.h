// The float8 codec: the arithmetic of one group and of one element, the same on every device.
//
// A group is stored as its largest magnitude, the bound, exact in the input's dtype, and one 8-bit float an element:
//
//   y     = x * largest / bound         largest: the format's largest finite number
//   code  = y as an 8-bit float, rounded up or down at random
//   value = code * bound / largest, or the bound itself for the largest code
//
// The codes are the bit patterns of the formats E4M3 and E5M2 (Micikevicius et al., "FP8 formats for deep learning",
// 2022), so that torch.float8_e4m3fn and torch.float8_e5m2 read them.
//
// Rounding: with ulp = 2^(exponent - mantissa bits) the distance of neighbouring codes at |y|, its exponent clamped at
// the format's smallest, t = |y| / ulp in 1/256ths and r uniform in 0..255, (t + r) >> 8 has mean t / 256. Counted from
// the smallest exponent on, that integer is the code: normal or subnormal, and one that is rounded up to the next
// power of two carries into the exponent by itself.
#pragma once

#include <cstdint>

#include "codec/float16.h"
#include "codec/group_affine.h"
#include "codec/macros.h"

namespace actcore {

struct E4M3 {
  static constexpr int mantissa = 3;            // bits
  static constexpr int smallest_exponent = -6;  // of normal numbers
  static constexpr float largest = 448.0f;
};
struct E5M2 {
  static constexpr int mantissa = 2;
  static constexpr int smallest_exponent = -14;
  static constexpr float largest = 57344.0f;
};

constexpr int kFloatBias = 127;
constexpr int kFloatMantissa = 23;

// Magnitudes compared as integers: infinities and NaN are above every finite number.
template <class E>
struct Magnitude;
template <>
struct Magnitude<float> {
  using type = int32_t;
  static constexpr type mask = 0x7FFFFFFF, infinity = 0x7F800000;
};
template <>
struct Magnitude<double> {
  using type = int64_t;
  static constexpr type mask = 0x7FFFFFFFFFFFFFFF, infinity = 0x7FF0000000000000;
};
template <>
struct Magnitude<Half> {
  using type = int16_t;
  static constexpr type mask = 0x7FFF, infinity = 0x7C00;
};
template <>
struct Magnitude<BFloat16> {
  using type = int16_t;
  static constexpr type mask = 0x7FFF, infinity = 0x7F80;
};
template <class E>
using magnitude_t = typename Magnitude<E>::type;

template <class E>
ACTCORE_FN magnitude_t<E> magnitude_of(const E& value) {
  magnitude_t<E> bits;
  memcpy(&bits, &value, sizeof bits);
  return static_cast<magnitude_t<E>>(bits & Magnitude<E>::mask);
}

template <class E>
ACTCORE_FN E from_magnitude(magnitude_t<E> bits) {
  E value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// A bound turned into what encoding and decoding need. Values of a group so small that largest / bound would overflow
// are first multiplied by a power of two.
template <class T>
struct Float8Scale {
  T scale;    // 1 or 2^64 (fp64: 2^512)
  T unscale;  // its inverse
  T factor;   // largest / (bound * scale); 0 for a group of zeros
  T step;     // its inverse, with a rounding of its own
  T bound;
};

template <class Format, class T>
ACTCORE_FN Float8Scale<T> float8_scale(T bound) {
  const bool raised = bound > T(0) && bound < Limits<T>::tiny;
  const T scale = raised ? Limits<T>::raise : T(1);
  const T scaled = bound * scale;
  return {scale, raised ? Limits<T>::lower : T(1), bound > T(0) ? T(Format::largest) / scaled : T(0),
          scaled / T(Format::largest), bound};
}

// |y| is at most the format's largest number, give or take a rounding, which the rounding to 1/256ths of its ulp
// removes. `shift` is kNoiseBits, or 0 for rounding to nearest, ties to even.
template <class Format>
ACTCORE_FN int float8_encode(float y, int noise, int shift) {
  const int bits = static_cast<int>(bits_of(y));
  const int magnitude = bits & 0x7FFFFFFF;
  int exponent = (magnitude >> kFloatMantissa) - kFloatBias;
  exponent = exponent > Format::smallest_exponent ? exponent : Format::smallest_exponent;
  const int power = (kFloatBias + Format::mantissa + shift - exponent) << kFloatMantissa;
  const float steps = float_of(static_cast<uint32_t>(magnitude)) * float_of(static_cast<uint32_t>(power));
  const int code = (round_to_int(steps) + noise) >> shift;
  return (((exponent - Format::smallest_exponent) << Format::mantissa) + code) | ((bits >> 24) & 0x80);
}

// The number that a code stands for, finite whatever the code.
template <class Format>
ACTCORE_FN float float8_value(int code) {
  const int magnitude = code & 0x7F;
  int field = magnitude >> Format::mantissa;
  field = field > 1 ? field : 1;
  const int significand = magnitude - ((field - 1) << Format::mantissa);
  const int power = kFloatBias + field - 1 + Format::smallest_exponent - Format::mantissa;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  return static_cast<float>(significand) * float_of(sign | (static_cast<uint32_t>(power) << kFloatMantissa));
}

template <class Format, class T>
ACTCORE_FN T float8_decode(int code, const Float8Scale<T>& group) {
  const float value = float8_value<Format>(code);
  if (value >= Format::largest) return group.bound;
  if (value <= -Format::largest) return -group.bound;
  return T(value) * group.step * group.unscale;
}

}  // namespace actcore
