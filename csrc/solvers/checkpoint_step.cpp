#include "solvers/checkpoint_step.h"

#include <algorithm>

#include "solvers/index.h"

namespace actcore {

StepFacts::StepFacts(const TrainingStep& step)
    : step_(step),
      producers_(step.values()),
      forward_ends_(step.values(), -1),
      last_reads_(step.values(), -1),
      optional_(step.values(), 0),
      wanted_(step.values(), 0),
      forced_(step.values(), 0) {
  for (size_t op = 0; op < step.ops(); ++op) {
    for (const int32_t value : step.makes[op]) {
      producers_[at(value)] = static_cast<int32_t>(op);
      forward_ends_[at(value)] = static_cast<int32_t>(op);
    }
    for (const int32_t value : step.reads[op]) forward_ends_[at(value)] = static_cast<int32_t>(op);
  }
  for (size_t i = 0; i < step.backward.size(); ++i) {
    for (const int32_t value : step.backward[i]) {
      wanted_[at(value)] = 1;
      last_reads_[at(value)] = static_cast<int32_t>(step.ops() + i);
    }
  }
  find_choices();
}

void StepFacts::find_choices() {
  const auto last_event = static_cast<int32_t>(step_.events()) - 1;
  std::vector<uint8_t> taken_over(step_.values(), 0);
  for (size_t value = 0; value < step_.values(); ++value) {
    if (step_.reuses[value] >= 0) {
      taken_over[at(step_.reuses[value])] = 1;
      forward_ends_[at(step_.reuses[value])] = producers_[value] - 1;
    }
    forward_ends_[value] = std::max(forward_ends_[value], step_.until[value]);
  }
  std::vector<uint8_t> can_repeat(step_.ops());
  for (size_t op = 0; op < step_.ops(); ++op) {
    can_repeat[op] = step_.repeatable[op];
    for (const int32_t value : step_.reads[op]) {
      if (taken_over[at(value)] && !can_repeat[at(producers_[at(value)])]) can_repeat[op] = 0;
    }
  }
  for (size_t value = 0; value < step_.values(); ++value) {
    if (taken_over[value]) continue;
    forced_[value] = !can_repeat[at(producers_[value])] || step_.until[value] == last_event;
    optional_[value] = !forced_[value];
  }
}

}  // namespace actcore
