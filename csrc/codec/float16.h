// bfloat16 and IEEE half, as the 16 bits that torch stores, to and from float. Rounding is to nearest, ties to
// even, like torch's own casts; NaN stays a (quiet) NaN. Plain integer code, the same on every device.
#pragma once

#include <cstdint>
#include <cstring>

#include "codec/macros.h"

namespace actcore {

ACTCORE_FN uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

ACTCORE_FN float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

ACTCORE_FN float to_float(BFloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

ACTCORE_FN BFloat16 to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

ACTCORE_FN float to_float(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, or NaN with its payload
    return float_of(sign | 0x7F800000u | ((magnitude & 0x03FFu) << 13) | (magnitude > 0x7C00u ? 0x00400000u : 0u));
  }
  // Shifted into a float's fields, the exponent is 112 too small; one exact product mends it, subnormals included.
  return float_of(sign | bits_of(float_of(magnitude << 13) * float_of(0x77800000u)));
}

ACTCORE_FN Half to_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x03FFu))};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};  // 65520 and above
  if (magnitude < 0x38800000u) {  // a subnormal half: adding 0.5 lets the adder round at the right bit
    return {static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u))};
  }
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13))};
}

}  // namespace actcore
