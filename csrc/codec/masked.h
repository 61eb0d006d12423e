// Activations that keep one bit an element for backward: ReLU and dropout. The arithmetic of one element, the same on
// every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "codec/arguments.h"
#include "codec/group_affine.h"
#include "codec/pattern.h"
#include "codec/philox.h"

namespace actcore {

// `mask` has packed_bytes(numel, 1) bytes; elements are taken in memory order.
struct ReluMask {
  const void* input;
  ElementType type;
  int64_t numel;
  void* output;
  uint8_t* mask;  // 1 where the gradient passes: where the element is positive or NaN
};

struct DropoutMask {
  const void* input;
  ElementType type;
  int64_t numel;
  uint32_t threshold;  // of 65536: an element is dropped where its noise is below
  double scale;        // of what is kept
  uint64_t seed;
  uint64_t stream;
  const int64_t* draw;  // in the input's memory; added to the seed; may be null
  void* output;
  uint8_t* mask;  // 1 where the element is kept
};

struct MaskBackward {
  const void* gradient;
  const uint8_t* mask;
  ElementType type;
  int64_t numel;
  double scale;
  void* output;  // gradient * scale where the mask is 1, and 0 elsewhere
};

// Whether an element is below zero: neither a negative zero, which ReLU keeps as torch does, nor NaN.
template <class E>
ACTCORE_FN bool is_negative(typename Pattern<E>::Word word) {
  using P = Pattern<E>;
  return word > P::sign && word <= static_cast<typename P::Word>(P::sign | P::infinity);
}

template <class E>
ACTCORE_FN bool lets_gradient_through(typename Pattern<E>::Word word) {
  return !(is_negative<E>(word) || static_cast<typename Pattern<E>::Word>(word << 1) == 0);
}

// `p` as the nearest multiple of 2^-16. What is kept is scaled by the inverse of the rate at which it is kept, so that
// the mean is the input's exactly.
ACTCORE_FN uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(rint(p * kHalfSteps)); }

ACTCORE_FN double dropout_scale(uint32_t threshold) {
  const double kept = static_cast<double>(kHalfSteps) - static_cast<double>(threshold);
  return kept > 0 ? static_cast<double>(kHalfSteps) / kept : 0.0;
}

}  // namespace actcore
