// Plans in which values wait in forms, made of those in which they wait as they are: for many prices of a second each
// value takes the form that costs least (checkpoint_fit.h), what is recomputed is chosen anew at what keeping costs
// then, and both are changed by local search.
#pragma once

#include <cstdint>
#include <vector>

#include "solvers/checkpoint_fit.h"
#include "solvers/checkpoint_moves.h"
#include "solvers/checkpoint_pool.h"
#include "solvers/checkpoint_row.h"

namespace actcore {

class FormSearch {
 public:
  FormSearch(PlanPool& pool, RowCuts& row, LocalSearch& moves) : pool_(pool), row_(row), moves_(moves), fit_(pool) {}

  void run(int64_t steps);

 private:
  // Ranks, and what their forms come to at some prices.
  struct Base {
    std::vector<uint8_t> ranks;
    struct Point {
      double price;
      Usage usage;
    };
    std::vector<Point> points;  // the price falls, as the peak does
  };

  void collect(size_t most);
  void add(const std::vector<uint8_t>& ranks);
  void sweep(Base& base, int64_t stop);
  void cut(int64_t steps);
  void approach(int64_t budget, int64_t stop);
  void change_ranks(int64_t budget, int64_t steps);
  void relax(int64_t budget, int64_t stop);
  void change_one(int64_t stop);
  void change_at_random(int64_t stop);
  bool change(int32_t value, size_t option, Assignment& plan) const;

  PlanPool& pool_;
  RowCuts& row_;
  LocalSearch& moves_;
  FormFit fit_;
  std::vector<Base> bases_;
};

}  // namespace actcore
