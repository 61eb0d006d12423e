// Stochastic rounding of a derivative to one of the two levels around it, so that the expected level is the derivative. The
// arithmetic of one element, the same on every device.
#pragma once

#include <cstdint>

#include "codec/arguments.h"
#include "codec/group_affine.h"
#include "codec/guard.h"
#include "codec/philox.h"

namespace actcore {

// Elements are taken in memory order. Levels have the type that elements are computed in.
struct LevelCodes {
  const void* derivative;
  const void* input;  // where the derivative was taken: the guard looks at both
  ElementType type;
  int64_t numel;
  const void* levels;  // ascending
  int level_count;     // from 2 to 2^bits
  int bits;
  uint64_t seed;
  uint64_t stream;
  const int64_t* draw;  // in the input's memory; added to the seed; may be null
  uint8_t* codes;       // packed_bytes(numel, bits)
  Guard guard;
  uint8_t* guards;  // stretch_count(numel), or null without a guard
};

// Steps of the noise from a level up to the next one, for each unit of the derivative.
template <class T>
ACTCORE_FN T steps_per_unit(T low, T high) {
  return T(kHalfSteps) / (high - low);
}

// Of 65536: how often a derivative above the level `low` is rounded up to the next. What is beyond the table takes its end;
// what is NaN, or lies on two equal levels, stays at the lower one.
template <class T>
ACTCORE_FN int rounding_threshold(T derivative, T low, T steps_per_unit) {
  const T steps = (derivative - low) * steps_per_unit;
  const T positive = steps > T(0) ? steps : T(0);
  return round_to_int(positive < T(kHalfSteps) ? positive : T(kHalfSteps));
}

}  // namespace actcore
