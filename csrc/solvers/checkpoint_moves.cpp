#include "solvers/checkpoint_moves.h"

#include <algorithm>
#include <utility>

#include "solvers/index.h"

namespace actcore {

bool LocalSearch::make(Move move, int32_t op, Assignment& plan) const {
  const auto& values = pool_.chosen[at(op)];
  if (move == Move::kLargest) {
    if (values.size() < 2) return false;
    const auto largest = std::max_element(values.begin(), values.end(), [&](int32_t a, int32_t b) {
      return pool_.step.nbytes[at(a)] < pool_.step.nbytes[at(b)];
    });
    pool_.set_value(*largest, plan.ranks[at(*largest)] != 0, plan);
    return true;
  }
  const bool keeps = pool_.keeps_all(op, plan);
  if (move != Move::kFlip && !keeps) return false;
  pool_.set(op, !keeps, plan);
  bool changed = move == Move::kFlip;
  const auto& others = move == Move::kBehind ? pool_.behind[at(op)] : pool_.before[at(op)];
  if (move == Move::kFlip) return true;
  for (const int32_t other : others) {
    if (pool_.keeps_all(other, plan)) continue;
    pool_.set(other, true, plan);
    changed = true;
  }
  return changed;
}

void LocalSearch::descend(Assignment plan, int64_t stop) {
  Assignment next;
  Assignment found;
  while (pool_.left > stop) {
    const Usage now = pool_.measure(plan);
    Usage best = now;
    for (const int32_t op : around(now.event)) {
      for (const Move move : kMoves) {
        if (pool_.left <= stop) return;
        next = plan;
        if (!make(move, op, next)) continue;
        const Usage usage = pool_.try_plan(next);
        if (usage.peak > best.peak || (usage.peak == best.peak && usage.seconds >= best.seconds)) continue;
        best = usage;
        found = next;
      }
    }
    if (best.peak == now.peak && best.seconds == now.seconds) return;
    plan = found;
  }
}

// Operators whose values' change could lower what is alive at an event of the last run: of values plan and alive then,
// and those of the segments that are repeated or alive then.
std::vector<int32_t> LocalSearch::around(int32_t event) const {
  std::vector<int32_t> candidates;
  for (const int32_t op : pool_.choosing) {
    bool counts = false;
    if (pool_.simulator.outer()[at(op)] >= 0) {
      const int32_t replay = pool_.simulator.outer_events()[at(pool_.simulator.outer()[at(op)])];
      counts = replay == event;
    }
    for (const int32_t value : pool_.chosen[at(op)]) {
      const int32_t end =
          pool_.simulator.keeps(at(value)) ? pool_.simulator.ends()[at(value)] : pool_.facts.last_reads()[at(value)];
      counts = counts || (op <= event && end >= event);
    }
    if (counts) candidates.push_back(op);
  }
  return candidates;
}

// Keeps segments, then the values of single operators, as far as the budget allows: those first that save most seconds
// a byte.
void LocalSearch::keep_more(int64_t budget, Assignment& plan, int64_t stop) {
  Usage now = pool_.measure(plan);
  struct Group {
    double worth = 0;
    std::vector<int32_t> ops;
  };
  std::vector<Group> groups;
  std::vector<int32_t> group_of(pool_.step.ops(), -1);
  for (const int32_t op : pool_.choosing) {
    if (pool_.simulator.outer()[at(op)] < 0) continue;
    int32_t& group = group_of[at(pool_.simulator.outer()[at(op)])];
    if (group < 0) {
      group = static_cast<int32_t>(groups.size());
      groups.emplace_back();
    }
    if (pool_.wanted_bytes[at(op)] > 0) groups[at(group)].ops.push_back(op);
  }
  for (const int32_t op : pool_.choosing) {
    if (pool_.simulator.outer()[at(op)] < 0) continue;
    groups.emplace_back();
    groups.back().ops.push_back(op);
  }
  for (Group& group : groups) {
    double seconds = 0;
    double bytes = 1;
    for (const int32_t op : group.ops) {
      seconds += pool_.step.seconds[at(op)];
      bytes += static_cast<double>(pool_.chosen_bytes[at(op)]);
    }
    group.worth = seconds / bytes;
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.worth > b.worth; });
  Assignment next;
  for (const Group& group : groups) {
    if (pool_.left <= stop) return;
    if (std::all_of(group.ops.begin(), group.ops.end(), [&](int32_t op) { return pool_.keeps_all(op, plan); }))
      continue;
    next = plan;
    for (const int32_t op : group.ops) pool_.set(op, true, next);
    const Usage usage = pool_.try_plan(next);
    if (usage.peak > budget || usage.seconds > now.seconds) continue;
    if (usage.seconds == now.seconds && usage.peak >= now.peak) continue;
    std::swap(plan, next);
    now = usage;
  }
}

// Changes one operator's values after the other's until the budget is met: those first that save the most bytes a
// second.
bool LocalSearch::drop_more(int64_t budget, Assignment& plan, int64_t stop) {
  constexpr size_t kMostCandidates = 24;
  Usage now = pool_.measure(plan);
  Assignment next;
  Assignment found;
  while (now.peak > budget && pool_.left > stop) {
    pool_.measure(plan);
    std::vector<int32_t> candidates = around(now.event);
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](int32_t a, int32_t b) { return pool_.seconds_a_byte(a) < pool_.seconds_a_byte(b); });
    if (candidates.size() > kMostCandidates) {
      // The cheapest ones, and some of all kinds.
      const size_t half = kMostCandidates / 2;
      const size_t others = candidates.size() - half;
      for (size_t i = 0; i < half; ++i) candidates[half + i] = candidates[half + i * others / half];
      candidates.resize(kMostCandidates);
    }
    Usage best = now;
    double worth = -1;
    for (const int32_t op : candidates) {
      for (const Move move : kMoves) {
        if (pool_.left <= stop) break;
        next = plan;
        if (!make(move, op, next)) continue;
        const Usage usage = pool_.try_plan(next);
        const auto saved = static_cast<double>(now.peak - std::max(usage.peak, budget));
        if (saved <= 0) continue;
        const double gain = saved / std::max(usage.seconds - now.seconds, 1e-6 * pool_.total_seconds);
        if (gain <= worth) continue;
        worth = gain;
        best = usage;
        found = next;
      }
    }
    if (worth < 0) return false;
    plan = found;
    now = best;
  }
  return now.peak <= budget;
}

void LocalSearch::improve(int64_t budget, int64_t steps) {
  const int64_t stop = pool_.left - steps;
  for (const double share : {1.0, 0.9, 0.75}) {
    const CheckpointPlan* start = pool_.best_within(static_cast<int64_t>(share * static_cast<double>(budget)));
    if (start == nullptr) break;
    Assignment plan = start->chosen;
    keep_more(budget, plan, pool_.left - (pool_.left - stop) / 4);
  }
  // More than the budget allows, and then what it takes to fit it.
  for (const double excess : {0.01, 0.04, 0.1, 0.2}) {
    const auto over = static_cast<int64_t>((1 + excess) * static_cast<double>(budget));
    const CheckpointPlan* start = pool_.best_within(over);
    if (start == nullptr || pool_.left <= stop) break;
    Assignment plan = start->chosen;
    if (drop_more(budget, plan, pool_.left - (pool_.left - stop) / 3))
      keep_more(budget, plan, pool_.left - (pool_.left - stop) / 3);
  }
}

// One change after the other, whichever lowers the peak most, from each of the plans with the lowest peaks.
void LocalSearch::lower_peak(int64_t steps) {
  constexpr size_t kStarts = 4;
  std::vector<Assignment> starts;
  const size_t count = pool_.front.size();
  for (size_t i = 0; i < kStarts && i < count; ++i) starts.push_back(pool_.front[i * i < count ? i * i : i].chosen);
  for (size_t i = 0; i < starts.size(); ++i) {
    descend(std::move(starts[i]), pool_.left - steps / static_cast<int64_t>(starts.size()));
  }
}

// What is left of the steps goes into known plans with a few values changed, the same ones each time. Small steps only
// have any.
void LocalSearch::change_at_random() {
  uint64_t state = 0x9e3779b97f4a7c15u;
  const auto draw = [&](size_t count) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<size_t>(state % count);
  };
  while (pool_.left > 0) {
    const CheckpointPlan& known = pool_.front[draw(2) == 0 ? 0 : draw(pool_.front.size())];
    const int64_t budget = known.usage.peak;
    Assignment plan = known.chosen;
    for (size_t changes = 1 + draw(4); changes-- > 0;) {
      const int32_t value = pool_.choices[draw(pool_.choices.size())];
      pool_.set_value(value, plan.ranks[at(value)] != 0, plan);
    }
    const Usage usage = pool_.try_plan(plan);
    if (usage.peak <= budget) {
      keep_more(budget, plan, pool_.left / 2);
    } else if (drop_more(budget, plan, pool_.left / 2)) {
      keep_more(budget, plan, pool_.left / 2);
    }
  }
}

// What takes the fewest seconds a byte is dropped first, each time a few operators more.
void LocalSearch::drop_by_worth(int64_t steps) {
  const int64_t stop = pool_.left - steps;
  for (const bool late : {false, true}) {
    std::vector<int32_t> ops = pool_.choosing;
    if (late) std::reverse(ops.begin(), ops.end());
    std::stable_sort(ops.begin(), ops.end(),
                     [&](int32_t a, int32_t b) { return pool_.seconds_a_byte(a) < pool_.seconds_a_byte(b); });
    Assignment plan = pool_.everything();
    const auto stride = std::max<int64_t>(1, static_cast<int64_t>(ops.size()) * pool_.visit_cost * 2 / (steps + 1));
    for (size_t i = 0; i < ops.size() && pool_.left > stop; ++i) {
      pool_.set(ops[i], false, plan);
      if (static_cast<int64_t>(i) % stride == 0) pool_.try_plan(plan);
    }
  }
}

}  // namespace actcore
