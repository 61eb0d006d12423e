// Which choice each tensor gets, so that the sum of the costs is least and the bytes fit a budget: the multiple-choice
// knapsack problem. A choice is a width, or anything else that has a cost and takes bytes.
//
// Three steps, each of which says how far from the optimum it can be:
//   1. allocation_relaxation: a greedy on each tensor's lower convex hull solves the linear relaxation (Zemel 1980). Its
//      value is a lower bound, and rounded down it is a solution.
//   2. With the slope of the relaxation as the price of a byte, most choices cannot be in a better solution than the one
//      at hand. What remains is the core: few tensors, few choices.
//   3. allocation_core: dynamic programming over the core, tensor by tensor, after Pisinger's minimal algorithm
//      (EJOR 83, 1995). It remembers a bounded number of partial solutions; where it forgets one, the bound says so.
#pragma once

#include <cstdint>
#include <vector>

namespace actcore {

// Costs are finite and not negative; bytes are not negative, and the largest of each tensor add up to less than 2^63.
struct Choice {
  double cost;
  int64_t nbytes;
};

struct Allocation {
  std::vector<int32_t> choices;  // for each tensor a position in its row
  double lower_bound;            // no allocation within the budget costs less
  bool optimal;                  // none costs less than (1 - kOptimality) times this one
  int64_t steps;                 // partial solutions that were looked at
};

constexpr double kOptimality = 1e-9;

// Each row has a choice, and the cheapest in bytes of every row fit the budget together. `max_steps` bounds the work and
// the memory (12 bytes a step); with 0 steps the answer is the greedy's.
Allocation allocate(const std::vector<std::vector<Choice>>& tensors, int64_t budget, int64_t max_steps);

}  // namespace actcore
