// The guard of codes that stand for derivatives: a step function has a finite level everywhere, also where the derivative
// has none. A byte for each stretch of elements says that one of them was such, and backward gives NaN for the stretch.
#pragma once

#include "codec/pattern.h"

namespace actcore {

enum class Guard { kNone, kNan, kNonfinite };

// Elements that share a byte, in memory order: a quarter of a percent of codes of 3 bits.
constexpr int64_t kStretch = 1024;

ACTCORE_FN int64_t stretch_count(int64_t numel) { return numel / kStretch + (numel % kStretch != 0); }

// Whether an element, as its magnitude's pattern, is one that the guard looks for; the larger one of two magnitudes is if
// either is.
template <class E>
ACTCORE_FN bool is_guarded(typename Pattern<E>::Word magnitude, Guard guard) {
  constexpr auto infinity = Pattern<E>::infinity;
  return guard == Guard::kNonfinite ? magnitude >= infinity : guard == Guard::kNan && magnitude > infinity;
}

}  // namespace actcore
