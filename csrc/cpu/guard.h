// The guard on the CPU: whether a stretch of elements holds one whose gradient must be NaN.
#pragma once

#include <type_traits>

#include "codec/guard.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

template <class E>
ACTCORE_FN uint8_t guard_byte(const void* elements, int64_t begin, int64_t count, Guard guard) {
  using Word = typename Pattern<E>::Word;
  // Magnitudes have no sign, and every instruction set compares signed integers.
  using Signed = std::make_signed_t<Word>;
  const Word* words = static_cast<const Word*>(elements) + begin;
  Signed largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<Signed>(words[i] & static_cast<Word>(~Pattern<E>::sign));
    largest = magnitude > largest ? magnitude : largest;
  }
  return is_guarded<E>(static_cast<Word>(largest), guard);
}

}  // namespace actcore::ACTCORE_ISA
