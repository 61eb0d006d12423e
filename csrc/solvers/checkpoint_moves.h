// Plans from known ones, by changing what a few operators keep.
#pragma once

#include <cstdint>
#include <vector>

#include "solvers/checkpoint_pool.h"

namespace actcore {

class LocalSearch {
 public:
  explicit LocalSearch(PlanPool& pool) : pool_(pool) {}

  // What takes the fewest seconds a byte is dropped first, each time a few operators more.
  void drop_by_worth(int64_t steps);
  // One change after the other, whichever lowers the peak most, from each of the plans with the lowest peaks.
  void lower_peak(int64_t steps);
  // Fewer seconds within a budget.
  void improve(int64_t budget, int64_t steps);
  // What is left of the steps, for random changes, the same ones each time.
  void change_at_random();

 private:
  // Changes of one operator's values: they are kept or dropped, or dropped and those before or behind it kept instead,
  // which moves the border of a segment. Or the largest of several changes alone.
  enum class Move { kFlip, kBefore, kBehind, kLargest };
  static constexpr Move kMoves[] = {Move::kFlip, Move::kBefore, Move::kBehind, Move::kLargest};

  bool make(Move move, int32_t op, Assignment& plan) const;
  void descend(Assignment plan, int64_t stop);
  std::vector<int32_t> around(int32_t event) const;
  void keep_more(int64_t budget, Assignment& plan, int64_t stop);
  bool drop_more(int64_t budget, Assignment& plan, int64_t stop);

  PlanPool& pool_;
};

}  // namespace actcore
