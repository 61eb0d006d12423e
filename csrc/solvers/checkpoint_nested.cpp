#include "solvers/checkpoint_nested.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "solvers/index.h"

namespace actcore {

namespace {

constexpr int64_t kVisits = 2;  // a simulation takes as long as so many without nesting
constexpr size_t kStarts = 32;  // of the front
constexpr size_t kDescents = 3;
constexpr int64_t kBudgets = 8;

}  // namespace

// Simulates, and notes the plan if none that is known is as good.
Usage NestedSearch::try_ranks(const std::vector<uint8_t>& ranks) {
  pool_.left -= kVisits * pool_.visit_cost;
  pool_.steps += kVisits * pool_.visit_cost;
  const Usage usage = simulator_.run(ranks);
  const CheckpointPlan* known = pool_.best_within(usage.peak);
  if (known != nullptr && known->usage.seconds <= usage.seconds) return usage;
  const auto place = std::upper_bound(front_.begin(), front_.end(), usage.peak,
                                      [](int64_t peak, const Nested& plan) { return peak < plan.usage.peak; });
  if (place != front_.begin() && std::prev(place)->usage.seconds <= usage.seconds) return usage;
  std::erase_if(
      front_, [&](const Nested& plan) { return plan.usage.peak >= usage.peak && plan.usage.seconds >= usage.seconds; });
  const auto after = std::upper_bound(front_.begin(), front_.end(), usage.peak,
                                      [](int64_t peak, const Nested& plan) { return peak < plan.usage.peak; });
  front_.insert(after, {ranks, usage});
  return usage;
}

// An inner segment that backward comes to when its outer one is repeated need not be repeated once more.
void NestedSearch::hold_what_is_read_at_once(std::vector<uint8_t>& ranks) const {
  const TrainingStep& step = pool_.step;
  for (size_t op = 0; op < step.ops(); ++op) {
    const int32_t inner = simulator_.inner()[op];
    const int32_t outer = simulator_.outer()[op];
    if (inner < 0 || outer < 0 || simulator_.outer_events()[at(outer)] != simulator_.inner_events()[at(inner)])
      continue;
    for (const int32_t value : step.makes[op]) {
      if (simulator_.rank(at(value)) == 2 && pool_.facts.wanted()[at(value)]) ranks[at(value)] = 1;
    }
  }
}

void NestedSearch::group(const GroupCuts& cuts, int64_t peak) {
  std::set<std::vector<size_t>> known;
  for (const double share : {0.0, 0.1, 0.3, 1.0, 3.0}) {
    const double price = share * static_cast<double>(cuts.kept_bytes());
    for (const double part : {1.0, 1.05, 1.1, 1.2, 1.35, 1.6}) {
      const std::vector<size_t> groups = cuts.solve(static_cast<int64_t>(part * static_cast<double>(peak)), price);
      if (groups.empty() || !known.insert(groups).second) continue;
      std::vector<uint8_t> ranks = cuts.ranks(groups);
      try_ranks(ranks);
      hold_what_is_read_at_once(ranks);
      try_ranks(ranks);
    }
  }
}

bool NestedSearch::set(int32_t op, uint8_t rank, std::vector<uint8_t>& ranks) const {
  bool changed = false;
  for (const int32_t value : pool_.chosen[at(op)]) {
    changed = changed || ranks[at(value)] != rank;
    ranks[at(value)] = rank;
  }
  return changed;
}

// Operators whose values' ranks could change what is alive at an event of the last run.
std::vector<int32_t> NestedSearch::around(int32_t event) const {
  std::vector<int32_t> candidates;
  for (const int32_t op : pool_.choosing) {
    const int32_t outer = simulator_.outer()[at(op)];
    const int32_t inner = simulator_.inner()[at(op)];
    bool counts = (outer >= 0 && simulator_.outer_events()[at(outer)] == event) ||
                  (inner >= 0 && simulator_.inner_events()[at(inner)] == event);
    for (const int32_t value : pool_.chosen[at(op)]) {
      counts =
          counts || simulator_.read_inside(at(value)) || (op <= event && pool_.facts.last_reads()[at(value)] >= event);
    }
    if (counts) candidates.push_back(op);
  }
  return candidates;
}

// Other ranks for what one operator makes, as long as that lowers the peak.
void NestedSearch::descend(Nested plan, int64_t stop) {
  std::vector<uint8_t> next;
  bool lower = true;
  while (lower) {
    lower = false;
    simulator_.run(plan.ranks);
    for (const int32_t op : around(plan.usage.event)) {
      for (uint8_t rank = 0; rank < 3; ++rank) {
        if (pool_.left <= stop) return;
        next = plan.ranks;
        if (!set(op, rank, next)) continue;
        const Usage usage = try_ranks(next);
        if (usage.peak > plan.usage.peak || (usage.peak == plan.usage.peak && usage.seconds >= plan.usage.seconds)) {
          continue;
        }
        plan = {next, usage};
        lower = true;
      }
    }
  }
}

// Segments are nested no more, as far as a budget allows: what is held is kept, or all is held.
void NestedSearch::repeat_less(Nested plan, int64_t budget, int64_t stop) {
  simulator_.run(plan.ranks);
  const std::vector<int32_t> outer = simulator_.outer();
  std::vector<int32_t> firsts;
  for (size_t op = 0; op < outer.size(); ++op) {
    if (outer[op] == static_cast<int32_t>(op)) firsts.push_back(outer[op]);
  }
  std::vector<uint8_t> next;
  for (const int32_t first : firsts) {
    for (const uint8_t rank : {uint8_t{0}, uint8_t{1}}) {
      if (pool_.left <= stop) return;
      next = plan.ranks;
      for (const int32_t op : pool_.choosing) {
        if (outer[at(op)] != first) continue;
        for (const int32_t value : pool_.chosen[at(op)]) {
          if (plan.ranks[at(value)] == rank + 1) next[at(value)] = rank;
        }
      }
      if (next == plan.ranks) continue;
      const Usage usage = try_ranks(next);
      if (usage.peak > budget || usage.seconds >= plan.usage.seconds) continue;
      plan = {next, usage};
      break;
    }
  }
}

// Of the front, plans that keep more than the least peak allows: what they keep is what nesting saves.
std::vector<Assignment> NestedSearch::starts() const {
  std::vector<Assignment> starts;
  const auto ratio = static_cast<double>(pool_.front.back().usage.peak) /
                     std::max(1.0, static_cast<double>(pool_.front.front().usage.peak));
  double next = 0;
  for (size_t i = 0; i + 1 < pool_.front.size(); ++i) {
    const auto peak = static_cast<double>(pool_.front[i].usage.peak);
    if (peak < next) continue;
    starts.push_back(pool_.front[i].chosen);
    next = peak * std::pow(ratio, 1.0 / static_cast<double>(kStarts));
  }
  return starts;
}

void NestedSearch::run(const std::vector<Assignment>& more, int64_t steps) {
  const int64_t stop = pool_.left - steps;
  std::vector<Assignment> plans = starts();
  plans.insert(plans.end(), more.begin(), more.end());
  std::vector<std::pair<int64_t, size_t>> order;  // by about the least peak that groups of a plan's segments have
  for (size_t i = 0; i < plans.size() && pool_.left > stop; ++i) {
    const auto own = plans.begin() + static_cast<int64_t>(i);
    const auto same = [&](const Assignment& plan) { return plan.ranks == plans[i].ranks; };
    if (std::any_of(plans.begin(), own, same)) continue;
    const GroupCuts cuts(pool_, plans[i]);
    if (cuts.kept_bytes() > 0) order.emplace_back(cuts.least_peak(), i);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [peak, i] : order) {
    if (pool_.left <= stop + steps / 2) break;
    group(GroupCuts(pool_, plans[i]), peak);
  }
  const int64_t least = pool_.front.front().usage.peak;
  const int64_t share = (pool_.left - stop) / 10;
  for (size_t i = 0; i < kDescents && i < front_.size() && front_[i].usage.peak < least; ++i) {
    descend(front_[i], pool_.left - share);
  }
  if (front_.empty()) return;
  const int64_t lowest = front_.front().usage.peak;
  for (int64_t i = 0; i < kBudgets; ++i) {
    const int64_t budget = lowest + (least - 1 - lowest) * i / (kBudgets - 1);
    const auto after = std::upper_bound(front_.begin(), front_.end(), budget,
                                        [](int64_t bytes, const Nested& plan) { return bytes < plan.usage.peak; });
    if (after != front_.begin())
      repeat_less(*std::prev(after), budget, pool_.left - (pool_.left - stop) / (kBudgets - i));
  }
  enter();
}

void NestedSearch::enter() {
  for (const Nested& plan : front_) pool_.enter({{plan.ranks, {}}, plan.usage});
}

}  // namespace actcore
