// The part of an allocation that the relaxation leaves open, and the search through it.
#pragma once

#include <cstddef>
#include <limits>

#include "solvers/allocation_relaxation.h"

namespace actcore {

struct Solution {
  Positions positions;
  double cost;
};

// An item of a tensor in the core, as a deviation from the relaxation's base.
struct Deviation {
  int64_t nbytes;    // more than base takes; negative for fewer
  double cost;       // of the item itself
  double bound;      // no solution with this item costs less
  int32_t position;  // in the tensor's items
};

struct CoreTensor {
  int32_t tensor;
  double nearest;                     // the least bound of an item that is not base's
  double upgrade;                     // the most that a byte more can save here; 0 where there is no upgrade
  double downgrade;                   // the least that a byte less can cost here; infinite where there is no downgrade
  std::vector<Deviation> deviations;  // base's own among them
};

struct Core {
  std::vector<CoreTensor> tensors;  // those first where a change is likeliest to pay
  double fixed_cost;                // of the tensors outside, all at base
  double bound;                     // the relaxation's: no allocation costs less
  double rounding;                  // relative error of a sum over all tensors
  int64_t choices;                  // in all of `tensors`
};

// Leaves out every item that no solution cheaper than `limit` can have.
Core make_core(const std::vector<Items>& tensors, const Relaxation& relaxation, double limit);

struct Search {
  double forgotten = std::numeric_limits<double>::infinity();  // no solution that was passed over costs less
  int64_t steps = 0;                                           // at most width * core.choices
};

// Improves `best` by the cheapest solution found while remembering `width` partial solutions per tensor, and passes over
// what cannot be cheaper than (1 - kOptimality) * best.cost.
Search search(const Core& core, const Relaxation& relaxation, size_t width, Solution& best);

}  // namespace actcore
