// The group-affine codec: the arithmetic of one group and of one element, the same on every device.
//
// A group of elements is stored as its two bounds, exact in the input's dtype, and one code an element:
//
//   code  = round(levels * (x - low) / (high - low))       levels = 2^bits - 1, rounded up or down at random
//   value = low + code * step, or high for the top code    step = (high - low) / levels
//
// The random rounding is unbiased: with t = levels * (x - low) / (high - low) in 1/256ths of a step and r uniform
// in 0..255, (t + r) >> 8 has mean t / 256 and never leaves its field, since t <= 256 * levels and r < 256.
// ActNN (Chen et al., ICML 2021) and GACT (Liu et al., ICML 2022) describe the method.
//
// A group with elements that are not finite is *broken*. These have the top code and come back as NaN; the others have
// one code fewer, between the bounds of the finite ones, which are stored in the other order, (high, low), or as
// (NaN, low) where they are equal. (NaN, NaN) is a group of nothing but NaN: it has no finite element, or several values
// and a single bit.
//
// Bit equality between devices rests on three things: each formula below rounds at the same places everywhere
// (fma where written, no contraction elsewhere), bounds have no negative zero, and noise is keyed by position.
#pragma once

#include <cmath>
#include <cstdint>

#include "codec/float16.h"
#include "codec/macros.h"

namespace actcore {

// What an element type is computed in.
template <class T>
struct Compute {
  using type = T;
};
template <>
struct Compute<BFloat16> {
  using type = float;
};
template <>
struct Compute<Half> {
  using type = float;
};
template <class T>
using compute_t = typename Compute<T>::type;

ACTCORE_FN float load(float value) { return value; }
ACTCORE_FN double load(double value) { return value; }
ACTCORE_FN float load(BFloat16 value) { return to_float(value); }
ACTCORE_FN float load(Half value) { return to_float(value); }

ACTCORE_FN void store(float* out, float value) { *out = value; }
ACTCORE_FN void store(double* out, double value) { *out = value; }
ACTCORE_FN void store(BFloat16* out, float value) { *out = to_bfloat16(value); }
ACTCORE_FN void store(Half* out, float value) { *out = to_half(value); }

ACTCORE_FN float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
ACTCORE_FN double fused_multiply_add(double a, double b, double c) { return fma(a, b, c); }

// `apart`: by which a deviation is divided at least. Its square is a number still, and differences that the variance has
// lost do not become large ones.
template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float tiny = 0x1p-100f, raise = 0x1p64f, lower = 0x1p-64f, huge = 0x1.fffffep127f, apart = 0x1p-63f;
};
template <>
struct Limits<double> {
  static constexpr double tiny = 0x1p-900, raise = 0x1p512, lower = 0x1p-512, huge = 0x1.fffffffffffffp1023,
                          apart = 0x1p-511;
};

// By what elements less their mean are multiplied.
template <class T>
ACTCORE_FN T standard_factor(T deviation) {
  return T(1) / (deviation < Limits<T>::apart ? Limits<T>::apart : deviation);
}

// Noise has this many bits: a code is rounded in steps of 2^-8.
constexpr int kNoiseBits = 8;
constexpr float kNoiseSteps = 256.0f;

// A group's bounds turned into what encoding and decoding need. Values are first multiplied by `scale`, a power of
// two and so exact: 1 for ordinary groups, 1/2 where high - low overflows, 2^64 where it is so small that a step
// would be subnormal.
template <class T>
struct GroupScale {
  T scale;    // 1, 1/2 or 2^64 (fp64: 2^512)
  T unscale;  // its inverse
  T origin;   // low * scale
  T range;    // (high - low) * scale; 0 for a constant group, NaN for one that is not finite
  T high;     // the upper bound itself, the value of the top code
};

template <class T>
ACTCORE_FN GroupScale<T> group_scale(T low, T high) {
  const T range = high - low;
  T scale = 1, unscale = 1;
  if (range > Limits<T>::huge) {
    scale = T(0.5);
    unscale = T(2);
  } else if (range > T(0) && range < Limits<T>::tiny) {
    scale = Limits<T>::raise;
    unscale = Limits<T>::lower;
  }
  const T origin = low * scale;
  return {scale, unscale, origin, high * scale - origin, high};
}

template <class T>
ACTCORE_FN bool is_finite(T value) {
  return value - value == T(0);
}

// Whether a group with these bounds, as they are stored, is broken.
template <class T>
ACTCORE_FN bool is_broken(T first, T second) {
  return !(first <= second);
}

// The scale of a broken group by its bounds, as they are stored.
template <class T>
ACTCORE_FN GroupScale<T> broken_scale(T first, T second) {
  return group_scale(second, first > second ? first : second);
}

// The top code of finite elements.
ACTCORE_FN constexpr int top_code(int bits, bool broken) { return (1 << bits) - 1 - static_cast<int>(broken); }

// Whether finite elements between these bounds, of a broken group, are stored at all. There may be none of them.
template <class T>
ACTCORE_FN bool keeps_finite(T low, T high, int bits) {
  return low == high || (low < high && bits > 1);
}

// Codes per unit of scaled value: in 1/256ths of a step for stochastic rounding, in steps for nearest.
template <class T>
ACTCORE_FN T encode_factor(const GroupScale<T>& group, int levels, bool stochastic) {
  if (!(group.range > T(0))) return T(0);
  return (stochastic ? T(levels) * T(kNoiseSteps) : T(levels)) / group.range;
}

template <class T>
ACTCORE_FN T decode_step(const GroupScale<T>& group, int levels) {
  return group.range / T(levels);
}

// `position` is an integer: rint(scaled offset * factor). Both products are exact or rounded once.
ACTCORE_FN int round_to_int(float value) { return static_cast<int>(rintf(value)); }
ACTCORE_FN int round_to_int(double value) { return static_cast<int>(rint(value)); }

template <class T>
ACTCORE_FN int encode(T value, const GroupScale<T>& group, T factor, int noise, int shift) {
  const T offset = value * group.scale - group.origin;
  return (round_to_int(offset * factor) + noise) >> shift;
}

template <class T>
ACTCORE_FN T decode(int code, const GroupScale<T>& group, T step, int levels) {
  if (code == levels) return group.high;
  return fused_multiply_add(T(code), step, group.origin) * group.unscale;
}

}  // namespace actcore
