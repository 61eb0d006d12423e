// The objective of Feng & Huang ("Optimal gradient checkpoint search for arbitrary computation graphs", CVPR 2021): the
// sum of the tensors that are kept plus that of the largest segment, where segments are the connected pieces of what is
// not kept. Any set may be kept, so segments may have several boundary tensors; the paper's have one at each end.
//
// For a bound M on the largest segment, `CutSolver` finds the cheapest set f(M), which never rises with M. So of all
// bounds in (low, high] none gives less than f(high) + low + 1: bisection, the interval with the least bound first,
// closes on the optimum, and says how far from it the answer can be.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace actcore {

struct Segments {
  std::vector<uint8_t> kept;
  int64_t kept_sum = 0;
  int64_t largest = 0;
  int64_t lower_bound = 0;  // of kept_sum + largest, over all sets
  int64_t steps = 0;
};

// Costs are not negative and add up to less than 2^61. Edges name two vertices, in any order. Tensors without cost are
// kept. About `max_steps` states are looked at; with fewer than one a vertex, everything is kept.
Segments find_segments(const std::vector<int64_t>& costs, const std::vector<std::pair<int32_t, int32_t>>& edges,
                       int64_t max_steps);

}  // namespace actcore
