// The part of `Simulator` that concerns values that wait in a form.
#include <algorithm>

#include "solvers/checkpoint_simulator.h"
#include "solvers/index.h"

namespace actcore {

// What the forward has stored aside need not be stored again.
int64_t Simulator::held(int32_t value) const {
  const int64_t held = form_of(value).held;
  return ranks_[at(value)] == 0 ? held : std::max<int64_t>(0, held - step_.aside[at(value)]);
}

const Form& Simulator::form_of(int32_t value) const {
  return step_.forms[at(value)][static_cast<size_t>(forms_[at(value)])];
}

// Whether there is anything that waits, in a form that can serve those that read it.
bool Simulator::waits_in_form(int32_t value) const {
  const bool read_again = first_readers_[at(value)] >= 0;
  const bool waits = facts_.wanted()[at(value)] || (ranks_[at(value)] < 2 && read_again);
  return waits && (!read_again || form_of(value).serves);
}

void Simulator::choose_forms(const std::vector<int8_t>& forms) {
  if (!formed_.empty()) {
    std::fill(restored_.begin(), restored_.end(), 0);
    std::fill(fresh_restored_.begin(), fresh_restored_.end(), 0);
    for (const int32_t value : formed_) forms_[at(value)] = -1;
    formed_.clear();
  }
  if (forms.empty() && !has_formed_) return;
  for (size_t value = 0; value < step_.values(); ++value) {
    const auto own = static_cast<int32_t>(value);
    forms_[value] = forms.empty() ? int8_t{-1} : forms[value];
    if (forms_[value] >= 0 && !waits_in_form(own)) forms_[value] = -1;
    if (forms_[value] < 0 && has_formed_ && step_.formed[value]) {
      forms_[value] = 0;
      if (!waits_in_form(own)) forms_[value] = -1;
    }
    if (forms_[value] >= 0) formed_.push_back(own);
  }
}

// What is stored of values that are kept, and of those that are recomputed.
void Simulator::add_stored() {
  for (size_t value = 0; value < step_.values(); ++value) {
    const auto own = static_cast<int32_t>(value);
    const bool formed = forms_[value] >= 0;
    if (formed) seconds_ += form_of(own).store_seconds;
    const bool aside = ranks_[value] > 0 && facts_.wanted()[value];
    if (ranks_[value] == 0 ? !formed : !aside) continue;
    int32_t begin = step_.stored_at[value];
    if (begin < 0) begin = ranks_[value] == 0 ? first_readers_[value] : -1;
    if (begin < 0) begin = facts_.producers()[value];
    if (aside) {
      live(begin, facts_.last_reads()[value], step_.aside[value]);
      continue;
    }
    live(begin, ends_[value], form_of(own).held);
    live(begin, begin, form_of(own).passing);
    // Until it is stored it is there as it is.
    live(std::max(facts_.forward_ends()[value], facts_.producers()[value] - 1) + 1, begin, step_.nbytes[value]);
  }
}

// What was restored last is lent to the next step that reads the same value, if nothing else is restored before.
void Simulator::restore_for_backward() {
  int32_t lent = -1;
  int32_t since = 0;
  for (size_t i = 0; i < step_.backward.size(); ++i) {
    const auto event = static_cast<int32_t>(step_.ops() + i);
    for (const int32_t value : step_.backward[i]) {
      if (forms_[at(value)] < 0) continue;
      const Form& form = form_of(value);
      const uint8_t rank = ranks_[at(value)];
      restored_[at(event)] += form.restored;
      if (rank > 0) {
        const Level& level = levels_[rank - 1];
        const int32_t segment = level.segments[at(facts_.producers()[at(value)])];
        if (level.events[at(segment)] == event) fresh_restored_[at(event)] += form.restored;
      }
      if (value != lent) seconds_ += form.restore_seconds;
      if (form.restored == 0) continue;
      if (lent >= 0) live(since + 1, event - 1, form_of(lent).restored);
      lent = facts_.last_reads()[at(value)] > event ? value : -1;
      since = event;
    }
  }
}

// Of what an operator that is repeated reads.
double Simulator::noise_read(const Level& level, int32_t value) const {
  const uint8_t rank = ranks_[at(value)];
  const double own = forms_[at(value)] >= 0 && rank < level.rank ? form_of(value).noise : 0.0;
  if (rank == 0) return own;
  return (rank < level.rank ? levels_[0] : level).noise[at(value)] + own;
}

double Simulator::variance() {
  if (std::all_of(formed_.begin(), formed_.end(), [&](int32_t value) { return form_of(value).noise == 0; })) return 0;
  for (size_t depth_now = 0; depth_now < depth(); ++depth_now) {
    Level& level = levels_[depth_now];
    for (size_t op = 0; op < step_.ops(); ++op) {
      if (level.segments[op] < 0) continue;
      double noise = 0;
      for (const int32_t value : step_.reads[op]) noise += noise_read(level, value);
      for (const int32_t value : step_.makes[op]) level.noise[at(value)] = noise;
    }
  }
  double variance = 0;
  for (size_t value = 0; value < step_.values(); ++value) {
    if (!facts_.wanted()[value] || step_.weights[value] == 0) continue;
    const uint8_t rank = ranks_[value];
    double noise = forms_[value] >= 0 ? form_of(static_cast<int32_t>(value)).noise : 0.0;
    if (rank > 0) noise += levels_[rank - 1].noise[value];
    variance += step_.weights[value] * noise;
  }
  return variance;
}

}  // namespace actcore
