// Plans from `CutSolver`: the operators of a step as a row of vertices, for prices of a second and bounds on a segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_cut.h"
#include "solvers/checkpoint_pool.h"

namespace actcore {

// Operators that can be repeated. One whose values only one other operator reads, and backward does not, is part of
// that one's vertex: it is repeated with it.
struct Row {
  std::vector<std::vector<int32_t>> ops;  // of each vertex; the last one's values may be kept
  std::vector<double> seconds;
  std::vector<int32_t> events;  // about when backward repeats it
  CutGraph graph;
};

class RowCuts {
 public:
  explicit RowCuts(PlanPool& pool);

  void cut_for_bounds(int64_t steps);
  // What that found, on the front or not.
  const std::vector<Assignment>& found() const { return found_; }
  // A segment may take what a budget leaves it.
  void cut_for_budgets(const std::vector<int64_t>& budgets, int64_t steps);
  // For what each value costs in bytes where it is kept, and a price of a second: plans, of which nothing is tried.
  std::vector<Assignment> cut_at(double bytes_a_second, const std::vector<double>& costs, int64_t stop);
  // The same for budgets that no known plan fits: what comes of it may still have a lower peak than all.
  void cut_below(int64_t steps);

 private:
  void build_row();
  Assignment plan_of(const Cut& cut) const;
  void price(double of_seconds);
  Cut cut(const CutSolver& solver, const std::vector<int64_t>& bounds);
  std::vector<int64_t> bounds_within(int64_t budget, const Assignment& plan);

  PlanPool& pool_;
  Row row_;
  std::vector<Assignment> found_;
  int64_t total_bytes_ = 0;
  double total_seconds_ = 0;
};

}  // namespace actcore
