#include "solvers/checkpoint_ranks.h"

#include <algorithm>

#include "solvers/index.h"

namespace actcore {

RankSimulator::RankSimulator(const Simulator& facts)
    : facts_(facts),
      step_(facts.step()),
      ranks_(step_.values()),
      read_inside_(step_.values()),
      ends_(step_.values()),
      bytes_(step_.events() + 1) {
  for (Level& level : levels_) {
    level.rank = &level == &levels_[0] ? 1 : 2;
    level.segments.resize(step_.ops());
    level.events.resize(step_.ops());
    level.next.resize(step_.ops());
    level.last.resize(step_.ops());
    level.last_reads.resize(step_.values());
    level.needed.resize(step_.values());
  }
}

bool RankSimulator::stays(const Level& level, int32_t value) const {
  return ranks_[at(value)] == level.rank &&
         (facts_.wanted()[at(value)] || (level.rank == 1 && read_inside_[at(value)]));
}

// What is needed, from the last operator to the first.
void RankSimulator::find_repeated() {
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
    for (const int32_t value : step_.reads[op]) {
      if (outside) outer.needed[at(value)] = 1;
      if (inside) inner.needed[at(value)] = 1;
      if (inside && ranks_[at(value)] == 1) read_inside_[at(value)] = 1;
    }
  }
}

// The operators that hand values to each other, in order, linked from the first.
void RankSimulator::find_segments(Level& level) {
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

int32_t RankSimulator::segment_of(Level& level, int32_t op) {
  while (level.segments[at(op)] != op) {
    int32_t& above = level.segments[at(op)];
    above = level.segments[at(above)];
    op = above;
  }
  return op;
}

void RankSimulator::find_events() {
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
  for (size_t op = 0; op < step_.ops(); ++op) {
    if (inner.segments[op] < 0) continue;
    const int32_t event = inner.events[at(inner.segments[op])];
    for (const int32_t value : step_.reads[op]) {
      if (ranks_[at(value)] != 1) continue;
      by(outer.events[at(outer.segments[at(facts_.producers()[at(value)])])], event);
    }
  }
}

void RankSimulator::add_lives() {
  const auto& [outer, inner] = levels_;
  // Of rank 0 since the forward, of rank 1 since the outer segment was repeated.
  for (size_t value = 0; value < step_.values(); ++value) {
    ends_[value] = ranks_[value] < 2 ? facts_.last_reads()[value] : -1;
  }
  for (const Level& level : levels_) {
    for (size_t op = 0; op < step_.ops(); ++op) {
      if (level.segments[op] < 0) continue;
      const int32_t event = level.events[at(level.segments[op])];
      for (const int32_t value : step_.reads[op]) {
        if (ranks_[at(value)] < level.rank) ends_[at(value)] = std::max(ends_[at(value)], event);
      }
    }
  }
  const auto live = [&](int32_t begin, int32_t last, int64_t size) {
    if (last < begin) return;
    bytes_[at(begin)] += size;
    bytes_[at(last) + 1] -= size;
  };
  for (size_t value = 0; value < step_.values(); ++value) {
    const auto own = static_cast<int32_t>(value);
    const int32_t producer = facts_.producers()[value];
    const int32_t end = facts_.forward_ends()[value];
    const int64_t size = step_.nbytes[value];
    live(producer, ranks_[value] == 0 ? std::max(end, ends_[value]) : end, size);
    if (stays(outer, own)) live(outer.events[at(outer.segments[at(producer)])], ends_[value], size);
    if (stays(inner, own)) {
      live(inner.events[at(inner.segments[at(producer)])], facts_.last_reads()[value], size);
    }
  }
  for (size_t event = 1; event < step_.events(); ++event) bytes_[event] += bytes_[event - 1];
}

// The most bytes that a segment's values and scratch take while it is repeated. Adds what is left for backward.
int64_t RankSimulator::replay(const Level& level, int32_t first, int64_t& left_over) const {
  int64_t live = 0;
  int64_t most = 0;
  for (int32_t op = first; op >= 0; op = level.next[at(op)]) {
    int64_t passing = 0;
    for (const int32_t value : step_.makes[at(op)]) {
      const int64_t size = step_.nbytes[at(value)];
      if (step_.reuses[at(value)] >= 0) live -= step_.nbytes[at(step_.reuses[at(value)])];
      if (stays(level, value)) {
        live += size;
        left_over += size;
      } else if (ranks_[at(value)] >= level.rank && level.last_reads[at(value)] != op) {
        live += size;
      } else {
        passing += size;
      }
    }
    most = std::max(most, live + passing + step_.scratch[at(op)]);
    for (const int32_t value : step_.reads[at(op)]) {
      if (ranks_[at(value)] < level.rank || stays(level, value) || level.last_reads[at(value)] != op) continue;
      const auto& makes = step_.makes[at(op)];
      const bool taken_over =
          std::any_of(makes.begin(), makes.end(), [&](int32_t made) { return step_.reuses[at(made)] == value; });
      if (!taken_over) live -= step_.nbytes[at(value)];
    }
  }
  return most;
}

void RankSimulator::add_fresh(Level& level, int32_t first, int32_t event) {
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
void RankSimulator::add_replays(int32_t event) {
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
  bytes = std::max(bytes + now, fresh_.empty() ? 0 : bytes - left_over + most + other);
}

Usage RankSimulator::run(const std::vector<uint8_t>& ranks) {
  for (size_t value = 0; value < step_.values(); ++value) ranks_[value] = facts_.rank_of(value, ranks[value]);
  find_repeated();
  for (Level& level : levels_) find_segments(level);
  find_events();
  std::fill(bytes_.begin(), bytes_.end(), 0);
  add_lives();
  Usage usage;
  for (size_t op = 0; op < step_.ops(); ++op) {
    bytes_[op] += step_.other[op] + step_.scratch[op];
    for (const Level& level : levels_) {
      if (level.segments[op] >= 0) usage.seconds += step_.seconds[op];
    }
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
