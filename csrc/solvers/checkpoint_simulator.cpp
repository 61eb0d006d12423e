#include "solvers/checkpoint_simulator.h"

#include <algorithm>

#include "solvers/index.h"

namespace actcore {

Simulator::Simulator(const StepFacts& facts)
    : facts_(facts),
      step_(facts.step()),
      has_aside_(std::any_of(step_.aside.begin(), step_.aside.end(), [](int64_t bytes) { return bytes > 0; })),
      has_formed_(std::any_of(step_.formed.begin(), step_.formed.end(), [](uint8_t formed) { return formed != 0; })),
      ranks_(step_.values()),
      read_inside_(step_.values()),
      ends_(step_.values()),
      bytes_(step_.events() + 1),
      forms_(step_.values(), -1),
      first_readers_(step_.values()),
      restored_(step_.events(), 0),
      fresh_restored_(step_.events(), 0) {
  for (Level& level : levels_) {
    level.rank = &level == &levels_[0] ? 1 : 2;
    level.segments.resize(step_.ops(), -1);
    level.events.resize(step_.ops());
    level.next.resize(step_.ops());
    level.last.resize(step_.ops());
    level.last_reads.resize(step_.values());
    level.needed.resize(step_.values());
    level.noise.resize(step_.values());
  }
}

bool Simulator::stays(const Level& level, int32_t value) const {
  return ranks_[at(value)] == level.rank &&
         (facts_.wanted()[at(value)] || (level.rank == 1 && read_inside_[at(value)]));
}

// What is needed, from the last operator to the first.
void Simulator::find_repeated() {
  auto& [outer, inner] = levels_;
  for (Level& level : levels_) std::fill(level.needed.begin(), level.needed.end(), uint8_t{0});
  std::fill(read_inside_.begin(), read_inside_.end(), uint8_t{0});
  for (size_t op = step_.ops(); op-- > 0;) {
    bool outside = false;
    bool inside = false;
    for (const int32_t value : step_.makes[op]) {
      const uint8_t rank = ranks_[at(value)];
      outside = outside || (rank > 0 && outer.needed[at(value)]) || stays(outer, value);
      inside = inside || (rank > 1 && inner.needed[at(value)]) || stays(inner, value);
    }
    outer.segments[op] = outside ? static_cast<int32_t>(op) : -1;
    inner.segments[op] = inside ? static_cast<int32_t>(op) : -1;
    if (!outside && !inside) continue;
    for (const int32_t value : step_.reads[op]) {
      if (outside) outer.needed[at(value)] = 1;
      if (inside) inner.needed[at(value)] = 1;
      if (inside && ranks_[at(value)] == 1) read_inside_[at(value)] = 1;
    }
  }
}

// The operators that hand values to each other, in order, linked from the first.
void Simulator::find_segments(Level& level) {
  for (size_t op = 0; op < step_.ops(); ++op) {
    if (level.segments[op] < 0) continue;
    const auto own = static_cast<int32_t>(op);
    level.events[op] = -1;
    level.next[op] = -1;
    for (const int32_t value : step_.reads[op]) {
      if (ranks_[at(value)] < level.rank) continue;
      const int32_t other = segment_of(level, facts_.producers()[at(value)]);
      const int32_t mine = segment_of(level, own);
      level.segments[at(std::max(mine, other))] = std::min(mine, other);
    }
  }
  for (size_t op = 0; op < step_.ops(); ++op) {
    if (level.segments[op] < 0) continue;
    const auto own = static_cast<int32_t>(op);
    const int32_t first = segment_of(level, own);
    level.segments[op] = first;
    if (first != own) level.next[at(level.last[at(first)])] = own;
    level.last[at(first)] = own;
    for (const int32_t value : step_.makes[op]) level.last_reads[at(value)] = own;
    for (const int32_t value : step_.reads[op]) level.last_reads[at(value)] = own;
  }
}

int32_t Simulator::segment_of(Level& level, int32_t op) {
  while (level.segments[at(op)] != op) {
    int32_t& above = level.segments[at(op)];
    above = level.segments[at(above)];
    op = above;
  }
  return op;
}

void Simulator::find_events() {
  auto& [outer, inner] = levels_;
  const auto by = [](int32_t& event, int32_t other) { event = event < 0 ? other : std::min(event, other); };
  for (size_t i = 0; i < step_.backward.size(); ++i) {
    for (const int32_t value : step_.backward[i]) {
      const uint8_t rank = ranks_[at(value)];
      if (rank == 0) continue;
      Level& level = rank == 1 ? outer : inner;
      by(level.events[at(level.segments[at(facts_.producers()[at(value)])])], static_cast<int32_t>(step_.ops() + i));
    }
  }
  for (size_t op = 0; nested_ && op < step_.ops(); ++op) {
    if (inner.segments[op] < 0) continue;
    const int32_t event = inner.events[at(inner.segments[op])];
    for (const int32_t value : step_.reads[op]) {
      if (ranks_[at(value)] != 1) continue;
      by(outer.events[at(outer.segments[at(facts_.producers()[at(value)])])], event);
    }
  }
}

// What waits, and until when it is needed.
void Simulator::find_readers() {
  // Of rank 0 since the forward, of rank 1 since the outer segment was repeated.
  for (size_t value = 0; value < step_.values(); ++value) {
    ends_[value] = ranks_[value] < 2 ? facts_.last_reads()[value] : -1;
  }
  std::fill(first_readers_.begin(), first_readers_.end(), -1);
  for (size_t depth_now = 0; depth_now < depth(); ++depth_now) {
    const Level& level = levels_[depth_now];
    for (size_t op = 0; op < step_.ops(); ++op) {
      if (level.segments[op] < 0) continue;
      const int32_t event = level.events[at(level.segments[op])];
      for (const int32_t value : step_.reads[op]) {
        if (ranks_[at(value)] >= level.rank) continue;
        ends_[at(value)] = std::max(ends_[at(value)], event);
        int32_t& first = first_readers_[at(value)];
        const auto own = static_cast<int32_t>(op);
        first = first < 0 ? own : std::min(first, own);
      }
    }
  }
}

void Simulator::live(int32_t begin, int32_t last, int64_t size) {
  if (last < begin) return;
  bytes_[at(begin)] += size;
  bytes_[at(last) + 1] -= size;
}

void Simulator::add_lives() {
  const auto& [outer, inner] = levels_;
  if (!formed_.empty() || has_aside_) add_stored();
  for (size_t value = 0; value < step_.values(); ++value) {
    const auto own = static_cast<int32_t>(value);
    const int32_t producer = facts_.producers()[value];
    const int32_t end = facts_.forward_ends()[value];
    const bool formed = forms_[value] >= 0;
    const int64_t size = step_.nbytes[value];
    live(producer, ranks_[value] == 0 && !formed ? std::max(end, ends_[value]) : end, size);
    if (ranks_[value] == 0) {
      ends_[value] = std::max(end, ends_[value]);
      continue;
    }
    const int64_t waiting = formed ? held(own) : size;
    if (stays(outer, own)) live(outer.events[at(outer.segments[at(producer)])], ends_[value], waiting);
    if (stays(inner, own)) {
      live(inner.events[at(inner.segments[at(producer)])], facts_.last_reads()[value], waiting);
    }
  }
  for (size_t event = 1; event < step_.events(); ++event) bytes_[event] += bytes_[event - 1];
}

// The most bytes that a segment's values and scratch take while it is repeated. Adds what is left for backward.
int64_t Simulator::replay(const Level& level, int32_t first, int64_t& left_over) {
  int64_t live = 0;
  int64_t most = 0;
  for (int32_t op = first; op >= 0; op = level.next[at(op)]) {
    int64_t passing = 0;  // what is there during this operator alone
    int64_t freed = 0;    // what of `live` is not there any more after it
    const auto store = [&](int32_t value) {
      passing += form_of(value).passing;
      live += held(value);
      freed += step_.nbytes[at(value)];
    };
    for (const int32_t value : step_.makes[at(op)]) {
      const int64_t size = step_.nbytes[at(value)];
      if (step_.reuses[at(value)] >= 0) live -= step_.nbytes[at(step_.reuses[at(value)])];
      if (stays(level, value)) {
        live += size;
        left_over += forms_[at(value)] >= 0 ? held(value) : size;
        if (forms_[at(value)] >= 0 && level.last_reads[at(value)] == op) store(value);
      } else if (ranks_[at(value)] >= level.rank && level.last_reads[at(value)] != op) {
        live += size;
      } else {
        passing += size;
      }
    }
    for (const int32_t value : step_.reads[at(op)]) {
      const bool formed = forms_[at(value)] >= 0;
      if (ranks_[at(value)] < level.rank) {
        if (!formed) continue;
        passing += form_of(value).restored;
        seconds_ += form_of(value).restore_seconds;
      } else if (level.last_reads[at(value)] == op) {
        if (stays(level, value)) {
          if (formed) store(value);
          continue;
        }
        const auto& makes = step_.makes[at(op)];
        const bool taken_over =
            std::any_of(makes.begin(), makes.end(), [&](int32_t made) { return step_.reuses[at(made)] == value; });
        if (!taken_over) freed += step_.nbytes[at(value)];
      }
    }
    most = std::max(most, live + passing + step_.scratch[at(op)]);
    live -= freed;
  }
  return most;
}

void Simulator::add_fresh(Level& level, int32_t first, int32_t event) {
  if (level.events[at(first)] != event) return;
  for (const Replay& known : fresh_) {
    if (known.level == &level && known.first == first) return;
  }
  if (level.rank == 2) {
    for (int32_t op = first; op >= 0; op = level.next[at(op)]) {
      for (const int32_t value : step_.reads[at(op)]) {
        if (ranks_[at(value)] != 1) continue;
        add_fresh(levels_[0], levels_[0].segments[at(facts_.producers()[at(value)])], event);
      }
    }
  }
  fresh_.push_back({&level, first});
}

// `bytes_` holds what is alive during the event, with what is repeated at its start.
void Simulator::add_replays(int32_t event) {
  fresh_.clear();
  for (const int32_t value : step_.backward[at(event) - step_.ops()]) {
    if (ranks_[at(value)] == 0) continue;
    Level& level = levels_[ranks_[at(value)] - 1];
    add_fresh(level, level.segments[at(facts_.producers()[at(value)])], event);
  }
  int64_t most = 0;
  int64_t left_over = 0;
  for (const Replay& fresh : fresh_) {
    const int64_t before = left_over;
    most = std::max(most, before + replay(*fresh.level, fresh.first, left_over));
  }
  // What lives between two steps of backward lives during both: so much of `other` is there before the step has begun.
  const int64_t now = step_.other[at(event)];
  const int64_t other = at(event) == step_.ops() ? now : std::min(now, step_.other[at(event) - 1]);
  int64_t& bytes = bytes_[at(event)];
  const int64_t restored = restored_[at(event)];
  const int64_t before = restored - fresh_restored_[at(event)];
  bytes = std::max(bytes + restored + now, fresh_.empty() ? 0 : bytes + before - left_over + most + other);
}

Usage Simulator::run(const std::vector<uint8_t>& ranks, const std::vector<int8_t>& forms) {
  nested_ = false;
  for (size_t value = 0; value < step_.values(); ++value) {
    ranks_[value] = facts_.rank_of(value, ranks[value]);
    nested_ = nested_ || (ranks_[value] == 2 && facts_.wanted()[value]);
  }
  seconds_ = 0;
  find_repeated();
  for (size_t level = 0; level < depth(); ++level) find_segments(levels_[level]);
  find_events();
  find_readers();
  choose_forms(forms);
  std::fill(bytes_.begin(), bytes_.end(), 0);
  if (!formed_.empty()) restore_for_backward();
  add_lives();
  Usage usage;
  for (size_t op = 0; op < step_.ops(); ++op) {
    bytes_[op] += step_.other[op] + step_.scratch[op];
    for (size_t level = 0; level < depth(); ++level) {
      if (levels_[level].segments[op] >= 0) seconds_ += step_.seconds[op];
    }
  }
  for (size_t event = step_.ops(); event < step_.events(); ++event) add_replays(static_cast<int32_t>(event));
  for (size_t event = 0; event < step_.events(); ++event) {
    if (bytes_[event] <= usage.peak) continue;
    usage.peak = bytes_[event];
    usage.event = static_cast<int32_t>(event);
  }
  bytes_.back() = 0;
  usage.seconds = seconds_;
  if (!formed_.empty()) usage.variance = variance();
  return usage;
}

}  // namespace actcore
