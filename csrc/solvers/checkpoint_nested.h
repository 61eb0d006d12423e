// Plans with nested checkpoints (checkpoint_simulator.h), made of those without: groups of their segments, then local
// search. They take less memory than any other where what is kept is most of the peak, for operators that are repeated
// twice.
#pragma once

#include <cstdint>
#include <vector>

#include "solvers/checkpoint_groups.h"
#include "solvers/checkpoint_pool.h"
#include "solvers/checkpoint_simulator.h"

namespace actcore {

class NestedSearch {
 public:
  explicit NestedSearch(PlanPool& pool) : pool_(pool), simulator_(pool.facts) {}

  // Enters plans in the pool's front, whose own plans are without nesting before. `more`: plans without nesting to start
  // from, beside those of the front.
  void run(const std::vector<Assignment>& more, int64_t steps);

 private:
  struct Nested {
    std::vector<uint8_t> ranks;
    Usage usage;
  };

  std::vector<Assignment> starts() const;
  Usage try_ranks(const std::vector<uint8_t>& ranks);
  // Groups whose peak is about this, or somewhat more for fewer seconds.
  void group(const GroupCuts& cuts, int64_t peak);
  void hold_what_is_read_at_once(std::vector<uint8_t>& ranks) const;
  void descend(Nested plan, int64_t stop);
  std::vector<int32_t> around(int32_t event) const;
  void repeat_less(Nested plan, int64_t budget, int64_t stop);
  bool set(int32_t op, uint8_t rank, std::vector<uint8_t>& ranks) const;
  void enter();

  PlanPool& pool_;
  Simulator simulator_;
  std::vector<Nested> front_;  // the peak rises, the seconds fall
};

}  // namespace actcore
