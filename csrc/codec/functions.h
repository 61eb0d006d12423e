// The pointwise functions that are only comparisons, products and quotients, the same on every device. Each formula rounds
// where torch's does.
#pragma once

#include "codec/stepwise.h"

namespace actcore {

// To the element type and back: what an operator of torch's does to its result where the next one reads it.
template <class E, class T>
ACTCORE_FN T rounded(T value) {
  E element;
  actcore::store(&element, value);
  return actcore::load(element);
}

template <class T>
ACTCORE_FN T clamp(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}

// Function values that need nothing else. `a` and `b` are the parameters.
template <Function function, class E, class T>
ACTCORE_FN T simple_value(T x, T a, T b) {
  if constexpr (function == Function::kRelu) return x < T(0) ? T(0) : x;
  if constexpr (function == Function::kLeakyRelu) return x > T(0) ? x : x * a;
  if constexpr (function == Function::kThreshold) return x <= a ? b : x;
  if constexpr (function == Function::kHardtanh) return clamp(x, rounded<E>(a), rounded<E>(b));
  if constexpr (function == Function::kRelu6) return clamp(x, T(0), T(6));
  if constexpr (function == Function::kHardshrink) {
    const T half_width = rounded<E>(a);
    return x >= -half_width && x <= half_width ? T(0) : x;
  }
  if constexpr (function == Function::kSoftshrink) {
    // torch's zeros are positive in its vectors and have the sign of x in what its vectors leave over.
    const T shift = rounded<E>(a);
    return x > shift ? x - shift : x < -shift ? x + shift : x != x ? x : T(0);
  }
  if constexpr (function == Function::kSoftsign) return x / rounded<E>((x < T(0) ? -x : x) + T(1));
  if constexpr (function == Function::kSquaredRelu) {
    const T positive = x < T(0) ? T(0) : x;
    return positive * positive;
  }
  return x;
}

}  // namespace actcore
