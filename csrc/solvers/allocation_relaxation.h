// The linear relaxation of an allocation: tensors may be split between two choices.
#pragma once

#include "solvers/allocation.h"

namespace actcore {

// A choice that no other of its tensor beats in both bytes and cost.
struct Item {
  int64_t nbytes;
  double cost;
  int32_t choice;  // its position in the caller's row
};

// Bytes ascend and costs descend, both strictly. Of choices that are equal in both, the first stays.
using Items = std::vector<Item>;

Items undominated(const std::vector<Choice>& row);

// Positions in each tensor's items.
using Positions = std::vector<int32_t>;

// A step of one tensor along its lower convex hull.
struct Upgrade {
  double slope;  // cost saved per byte
  int32_t tensor;
  int32_t from, to;
};

struct Relaxation {
  Positions base;                 // the relaxation's solution, its one split tensor rounded down
  int64_t slack;                  // bytes of the budget that `base` leaves
  double price;                   // what a further byte would save; 0 where nothing is left to buy
  std::vector<Upgrade> upgrades;  // of all tensors, the steepest first
};

Relaxation relax(const std::vector<Items>& tensors, int64_t budget);

// Takes from `slack` what further upgrades need, the steepest first, until no single choice that costs less fits.
void spend(const std::vector<Items>& tensors, const Relaxation& relaxation, int64_t slack, Positions& positions);

}  // namespace actcore
