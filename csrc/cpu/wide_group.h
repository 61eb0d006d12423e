// Whether a group of elements is so wide that codes would leave nothing of most of them, as those that a mask put beside
// others are. Each group is read twice, the second time from cache.
#pragma once

#include "codec/arguments.h"
#include "cpu/group_affine.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// A step of 8 bits is a range over 255: rounding leaves nothing of magnitudes below this part of the range.
constexpr int kFar = 1000;

// Of a group's elements: those between its bounds, and of these the ones that are not zero and that rounding leaves
// nothing of.
struct Between {
  int64_t all;
  int64_t lost;
};

template <class E, class T = compute_t<E>>
ACTCORE_FN Between count_between(const E* x, int64_t count, T low, T high) {
  const T least = high / kFar - low / kFar;  // the range may overflow
  const Vec<T> lows = broadcast(low), highs = broadcast(high), leasts = broadcast(least);
  // Comparisons give -1 in lanes as wide as the elements: as many can be added up as a vector has elements.
  decltype(lows < highs) all = {}, lost = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec<T> value = load(x + i);
    const auto inside = (value > lows) & (value < highs);
    all += inside;
    lost += inside & (value < leasts) & (value > -leasts) & (value != Vec<T>{});
  }
  Between found = {0, 0};
  for (int lane = 0; lane < kLanes; ++lane) found.all -= all[lane], found.lost -= lost[lane];
  for (; i < count; ++i) {
    const T value = actcore::load(x[i]);
    const bool inside = value > low && value < high;
    found.all += inside;
    found.lost += inside && value < least && value > -least && value != T(0);
  }
  return found;
}

// Whether a group has no finite bounds, or at least two elements, a sixteenth of all and a quarter of those between the
// bounds, of which rounding leaves nothing. Bounds are exact, and so are the zeros beside values such as 0 and 1.
template <class E, class T = compute_t<E>>
ACTCORE_FN bool is_wide(const E* x, int64_t count) {
  const Bounds<T> bounds = find_bounds(x, count);
  if (!bounds.finite) return true;
  const Between found = count_between(x, count, bounds.low, bounds.high);
  return found.lost > 1 && 16 * found.lost >= count && 4 * found.lost >= found.all;
}

template <class E>
bool any_wide(const WideGroup& args, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = g * args.group_size;
    const int64_t count = args.numel - first < args.group_size ? args.numel - first : args.group_size;
    if (is_wide(static_cast<const E*>(args.input) + first, count)) return true;
  }
  return false;
}

}  // namespace actcore::ACTCORE_ISA
