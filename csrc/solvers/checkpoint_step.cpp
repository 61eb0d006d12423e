#include "solvers/checkpoint_step.h"

#include <algorithm>

#include "solvers/index.h"

namespace actcore {

Simulator::Simulator(const TrainingStep& step)
    : step_(step),
      producers_(step.values()),
      forward_ends_(step.values(), -1),
      last_reads_(step.values(), -1),
      optional_(step.values(), 0),
      wanted_(step.values(), 0),
      forced_(step.values(), 0),
      keeps_(step.values()),
      needed_(step.values()),
      repeated_(step.ops()),
      segments_(step.ops()),
      replayed_at_(step.ops()),
      ends_(step.values()),
      next_(step.ops()),
      last_(step.ops()),
      last_in_segment_(step.values()),
      bytes_(step.events() + 1) {
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

void Simulator::find_choices() {
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

// What is needed, from the last operator to the first, and the segments: the operators that hand values to each other.
void Simulator::find_repeated() {
  std::copy(wanted_.begin(), wanted_.end(), needed_.begin());
  for (size_t op = step_.ops(); op-- > 0;) {
    repeated_[op] = 0;
    segments_[op] = -1;
    for (const int32_t value : step_.makes[op]) repeated_[op] |= !keeps_[at(value)] && needed_[at(value)];
    if (!repeated_[op]) continue;
    for (const int32_t value : step_.reads[op]) needed_[at(value)] = 1;
  }
  for (size_t op = 0; op < step_.ops(); ++op) {
    if (!repeated_[op]) continue;
    const auto own = static_cast<int32_t>(op);
    segments_[op] = own;
    replayed_at_[op] = -1;
    next_[op] = -1;
    for (const int32_t value : step_.reads[op]) {
      if (keeps_[at(value)]) continue;
      const int32_t other = segment_of(producers_[at(value)]);
      const int32_t mine = segment_of(own);
      segments_[at(std::max(mine, other))] = std::min(mine, other);
    }
  }
  // Each segment's operators in order, linked from its first.
  for (size_t op = 0; op < step_.ops(); ++op) {
    if (!repeated_[op]) continue;
    const int32_t first = segment_of(static_cast<int32_t>(op));
    segments_[op] = first;
    if (first != static_cast<int32_t>(op)) next_[at(last_[at(first)])] = static_cast<int32_t>(op);
    last_[at(first)] = static_cast<int32_t>(op);
    for (const int32_t value : step_.makes[op]) last_in_segment_[at(value)] = static_cast<int32_t>(op);
    for (const int32_t value : step_.reads[op]) last_in_segment_[at(value)] = static_cast<int32_t>(op);
  }
}

int32_t Simulator::segment_of(int32_t op) {
  while (segments_[at(op)] != op) {
    int32_t& above = segments_[at(op)];
    above = segments_[at(above)];
    op = above;
  }
  return op;
}

void Simulator::find_lives() {
  for (size_t i = 0; i < step_.backward.size(); ++i) {
    for (const int32_t value : step_.backward[i]) {
      if (keeps_[at(value)]) continue;
      int32_t& event = replayed_at_[at(segments_[at(producers_[at(value)])])];
      if (event < 0) event = static_cast<int32_t>(step_.ops() + i);
    }
  }
  std::copy(forward_ends_.begin(), forward_ends_.end(), ends_.begin());
  for (size_t value = 0; value < step_.values(); ++value) {
    if (keeps_[value]) ends_[value] = std::max(ends_[value], last_reads_[value]);
  }
  for (size_t op = 0; op < step_.ops(); ++op) {
    if (!repeated_[op]) continue;
    const int32_t event = replayed_at_[at(segments_[op])];
    for (const int32_t value : step_.reads[op]) {
      if (keeps_[at(value)]) ends_[at(value)] = std::max(ends_[at(value)], event);
    }
  }
}

// The most bytes that a segment's values and scratch take while it is repeated. Adds what is left for backward.
int64_t Simulator::replay(int32_t first, int64_t& left_over) {
  int64_t live = 0;
  int64_t most = 0;
  for (int32_t op = first; op >= 0; op = next_[at(op)]) {
    const auto stays = [&](int32_t value) { return !keeps_[at(value)] && wanted_[at(value)]; };
    int64_t passing = 0;
    for (const int32_t value : step_.makes[at(op)]) {
      const int64_t size = step_.nbytes[at(value)];
      if (step_.reuses[at(value)] >= 0) live -= step_.nbytes[at(step_.reuses[at(value)])];
      if (stays(value) || (!keeps_[at(value)] && last_in_segment_[at(value)] != op)) {
        live += size;
        if (stays(value)) left_over += size;
      } else {
        passing += size;
      }
    }
    most = std::max(most, live + passing + step_.scratch[at(op)]);
    for (const int32_t value : step_.reads[at(op)]) {
      if (keeps_[at(value)] || stays(value) || last_in_segment_[at(value)] != op) continue;
      const auto& makes = step_.makes[at(op)];
      const bool taken_over =
          std::any_of(makes.begin(), makes.end(), [&](int32_t made) { return step_.reuses[at(made)] == value; });
      if (!taken_over) live -= step_.nbytes[at(value)];
    }
  }
  return most;
}

// `bytes_` holds what is alive during the event, with what is repeated at its start.
void Simulator::add_replays(int32_t event) {
  fresh_.clear();
  for (const int32_t value : step_.backward[at(event) - step_.ops()]) {
    if (keeps_[at(value)]) continue;
    const int32_t first = segments_[at(producers_[at(value)])];
    if (replayed_at_[at(first)] != event) continue;
    if (std::find(fresh_.begin(), fresh_.end(), first) == fresh_.end()) fresh_.push_back(first);
  }
  int64_t most = 0;
  int64_t left_over = 0;
  for (const int32_t first : fresh_) {
    const int64_t before = left_over;
    most = std::max(most, before + replay(first, left_over));
  }
  // What lives between two steps of backward lives during both: so much of `other` is there before the step has begun.
  const int64_t now = step_.other[at(event)];
  const int64_t other = at(event) == step_.ops() ? now : std::min(now, step_.other[at(event) - 1]);
  int64_t& bytes = bytes_[at(event)];
  bytes = std::max(bytes + now, fresh_.empty() ? 0 : bytes - left_over + most + other);
}

Usage Simulator::run(const std::vector<uint8_t>& kept) {
  for (size_t value = 0; value < step_.values(); ++value) {
    keeps_[value] = optional_[value] ? kept[value] != 0 : forced_[value];
  }
  find_repeated();
  find_lives();
  std::fill(bytes_.begin(), bytes_.end(), 0);
  const auto live = [&](int32_t begin, int32_t last, int64_t size) {
    if (last < begin) return;
    bytes_[at(begin)] += size;
    bytes_[at(last) + 1] -= size;
  };
  for (size_t value = 0; value < step_.values(); ++value) {
    live(producers_[value], ends_[value], step_.nbytes[value]);
    if (keeps_[value] || !wanted_[value]) continue;
    const int32_t event = replayed_at_[at(segments_[at(producers_[value])])];
    live(event, last_reads_[value], step_.nbytes[value]);
  }
  for (size_t event = 1; event < step_.events(); ++event) bytes_[event] += bytes_[event - 1];
  Usage usage;
  for (size_t op = 0; op < step_.ops(); ++op) {
    bytes_[op] += step_.other[op] + step_.scratch[op];
    if (repeated_[op]) usage.seconds += step_.seconds[op];
  }
  for (size_t event = step_.ops(); event < step_.events(); ++event) add_replays(static_cast<int32_t>(event));
  for (size_t event = 0; event < step_.events(); ++event) {
    if (bytes_[event] <= usage.peak) continue;
    usage.peak = bytes_[event];
    usage.event = static_cast<int32_t>(event);
  }
  bytes_.back() = 0;
  return usage;
}

}  // namespace actcore
