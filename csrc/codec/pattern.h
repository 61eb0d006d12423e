// Elements as their bit patterns, in which a sign or an infinity is one comparison.
#pragma once

#include <cstdint>

#include "codec/float16.h"

namespace actcore {

template <class E>
struct Pattern;
template <>
struct Pattern<float> {
  using Word = uint32_t;
  static constexpr Word sign = 0x80000000u, infinity = 0x7F800000u;
};
template <>
struct Pattern<double> {
  using Word = uint64_t;
  static constexpr Word sign = 0x8000000000000000ull, infinity = 0x7FF0000000000000ull;
};
template <>
struct Pattern<Half> {
  using Word = uint16_t;
  static constexpr Word sign = 0x8000u, infinity = 0x7C00u;
};
template <>
struct Pattern<BFloat16> {
  using Word = uint16_t;
  static constexpr Word sign = 0x8000u, infinity = 0x7F80u;
};

}  // namespace actcore
