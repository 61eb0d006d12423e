// Nested checkpoints from a plan without them: the row of operators is cut into groups. What the plan keeps and a later
// group needs is kept; what only its own group needs is held when the group is repeated, which is done as a whole; the
// plan's segments become inner ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solvers/checkpoint_pool.h"

namespace actcore {

class GroupCuts {
 public:
  // Simulates the plan.
  GroupCuts(PlanPool& pool, const Assignment& plan);

  // Groups by their last place. `peak`: about what each group may have alive while backward goes through it. What is
  // kept is least, where what nesting repeats costs `price` bytes for the seconds of all operators. Empty: there are no
  // such groups.
  std::vector<size_t> solve(int64_t peak, double price) const;
  // About the least peak for which there are any, from above.
  int64_t least_peak() const;
  int64_t kept_bytes() const { return kept_bytes_; }

  // The ranks of all values.
  std::vector<uint8_t> ranks(const std::vector<size_t>& groups) const;

 private:
  // A value, with the places of the operator that makes it and of the last one that reads it.
  struct Choice {
    int32_t value;
    size_t made;
    size_t needed;
    bool kept;  // by the plan
  };

  void find_choices();
  void find_places();
  void find_costs();

  const PlanPool& pool_;
  const Assignment& plan_;
  int64_t kept_bytes_ = 0;
  std::vector<Choice> choices_;
  std::vector<size_t> places_;                 // of operators: a place in the row; a group ends with one
  std::vector<int64_t> beside_;                // of places: the most bytes beside what is kept, as backward is there
  std::vector<double> seconds_;                // of places: of what is repeated, of all operators'
  std::vector<std::vector<int64_t>> crosses_;  // of the first and the last place of a group: bytes that others need
  std::vector<std::vector<int64_t>> inside_;   // and that no other needs
};

}  // namespace actcore
