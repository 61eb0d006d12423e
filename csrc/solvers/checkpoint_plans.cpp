#include "solvers/checkpoint_plans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "solvers/checkpoint_cut.h"

namespace actcore {

namespace {

constexpr int32_t kBudgets = 20;
constexpr size_t kStates = 32;
constexpr int32_t kBounds = 14;                                       // of segments, each 3/4 of the one before
constexpr double kPrices[] = {0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0};  // of all operators' seconds, in all values' bytes

size_t at(int32_t index) { return static_cast<size_t>(index); }

// The operators of a step that can be repeated, as a row of vertices. One whose values only one other operator reads, and
// backward does not, is part of that one's vertex: it is repeated with it.
struct Row {
  std::vector<std::vector<int32_t>> ops;  // of each vertex; the last one's values may be kept
  std::vector<double> seconds;
  std::vector<int32_t> events;  // about when backward repeats it
  CutGraph graph;
};

class Planner {
 public:
  Planner(const TrainingStep& step, int64_t max_steps) : step_(step), simulator_(step), left_(max_steps) {
    find_choices();
    visit_cost_ = static_cast<int64_t>(step.ops() + step.values() + step.events());
  }

  Plans run() {
    const std::vector<uint8_t> all(step_.values(), 1);
    try_plan(all);
    if (choices_.size() < 20 && (int64_t{1} << choices_.size()) * visit_cost_ <= left_) {
      try_all();
      plans_.exact = true;
    } else {
      build_row();
      const int64_t total = left_;
      cut_for_bounds(total / 3);
      lower_peak(total / 8);
      const std::vector<int64_t> budgets = budgets_between();
      cut_for_budgets(budgets, total / 4);
      lower_peak(total / 16);
      for (size_t i = 0; i < budgets.size(); ++i) improve(budgets[i], left_ / static_cast<int64_t>(budgets.size() - i));
    }
    for (CheckpointPlan& plan : plans_.front) tidy(plan);
    return std::move(plans_);
  }

 private:
  // The values that there is a choice about, and that something could need again.
  void find_choices() {
    std::vector<uint8_t> useful = simulator_.wanted();
    for (size_t op = step_.ops(); op-- > 0;) {
      const bool leads = std::any_of(step_.makes[op].begin(), step_.makes[op].end(),
                                     [&](int32_t value) { return useful[at(value)] != 0; });
      if (!leads) continue;
      for (const int32_t value : step_.reads[op]) useful[at(value)] = 1;
    }
    for (size_t value = 0; value < step_.values(); ++value) {
      if (useful[value] && simulator_.optional()[value]) choices_.push_back(static_cast<int32_t>(value));
    }
    useful_ = std::move(useful);
  }

  Usage measure(const std::vector<uint8_t>& kept) {
    left_ -= visit_cost_;
    plans_.steps += visit_cost_;
    return simulator_.run(kept);
  }

  // Enters a plan in the front, unless another one is at least as good.
  bool enter(const std::vector<uint8_t>& kept, const Usage& usage) {
    auto& front = plans_.front;
    const auto place = std::upper_bound(front.begin(), front.end(), usage.peak,
                                        [](int64_t peak, const CheckpointPlan& plan) { return peak < plan.usage.peak; });
    if (place != front.begin() && std::prev(place)->usage.seconds <= usage.seconds) return false;
    const auto beaten = [&](const CheckpointPlan& plan) {
      return plan.usage.peak >= usage.peak && plan.usage.seconds >= usage.seconds;
    };
    std::erase_if(front, beaten);
    const auto after = std::upper_bound(front.begin(), front.end(), usage.peak,
                                        [](int64_t peak, const CheckpointPlan& plan) { return peak < plan.usage.peak; });
    front.insert(after, {kept, usage});
    return true;
  }

  Usage try_plan(const std::vector<uint8_t>& kept) {
    const Usage usage = measure(kept);
    enter(kept, usage);
    return usage;
  }

  void try_all() {
    std::vector<uint8_t> kept(step_.values(), 1);
    for (uint32_t set = 0; set < uint32_t{1} << choices_.size(); ++set) {
      for (size_t i = 0; i < choices_.size(); ++i) kept[at(choices_[i])] = !(set >> i & 1u);
      try_plan(kept);
    }
  }

  void build_row() {
    std::vector<std::vector<int32_t>> readers(step_.values());
    for (size_t op = 0; op < step_.ops(); ++op) {
      for (const int32_t value : step_.reads[op]) {
        if (readers[at(value)].empty() || readers[at(value)].back() != static_cast<int32_t>(op)) {
          readers[at(value)].push_back(static_cast<int32_t>(op));
        }
      }
    }
    std::vector<int32_t> joins(step_.ops());  // the operator that it is repeated with
    std::vector<uint8_t> counts(step_.ops(), 0);
    for (size_t op = step_.ops(); op-- > 0;) {
      joins[op] = static_cast<int32_t>(op);
      bool alone = true;
      int32_t reader = -1;
      for (const int32_t value : step_.makes[op]) {
        if (!useful_[at(value)]) continue;
        counts[op] = 1;
        alone = alone && !simulator_.wanted()[at(value)];
        for (const int32_t other : readers[at(value)]) {
          if (!counts[at(other)]) continue;
          alone = alone && (reader < 0 || reader == other);
          reader = other;
        }
      }
      if (counts[op] && alone && reader >= 0) joins[op] = joins[at(reader)];
    }
    std::vector<int32_t> vertices(step_.ops(), -1);
    for (size_t op = 0; op < step_.ops(); ++op) {
      if (!counts[op] || joins[op] != static_cast<int32_t>(op)) continue;
      vertices[op] = static_cast<int32_t>(row_.ops.size());
      row_.ops.emplace_back();
    }
    const size_t count = row_.ops.size();
    row_.seconds.assign(count, 0.0);
    row_.events.assign(count, static_cast<int32_t>(step_.ops()));
    row_.graph.vertices.assign(count, {0, 0, 0, false, true});
    row_.graph.before.resize(count);
    for (size_t op = 0; op < step_.ops(); ++op) {
      if (!counts[op]) continue;
      const int32_t vertex = vertices[at(joins[op])];
      row_.ops[at(vertex)].push_back(static_cast<int32_t>(op));
      row_.seconds[at(vertex)] += step_.seconds[op];
      for (const int32_t value : step_.reads[op]) {
        const int32_t other = vertices[at(joins[at(simulator_.producers()[at(value)])])];
        if (other >= 0 && other != vertex) {
          auto& before = row_.graph.before[at(std::max(other, vertex))];
          before.push_back(std::min(other, vertex));
        }
      }
      CutVertex& numbers = row_.graph.vertices[at(vertex)];
      for (const int32_t value : step_.makes[op]) {
        if (!useful_[at(value)]) continue;
        const bool own = joins[op] == static_cast<int32_t>(op);
        if (simulator_.wanted()[at(value)]) {
          numbers.weight += step_.nbytes[at(value)];
          row_.events[at(vertex)] = std::max(row_.events[at(vertex)], simulator_.last_reads()[at(value)]);
        }
        if (!own) continue;
        if (simulator_.optional()[at(value)]) {
          numbers.may_keep = true;
          numbers.keep += step_.nbytes[at(value)];
        } else if (simulator_.keeps(at(value))) {
          numbers.may_drop = false;
          numbers.may_keep = true;
        }
      }
    }
    for (auto& before : row_.graph.before) {
      std::sort(before.begin(), before.end());
      before.erase(std::unique(before.begin(), before.end()), before.end());
    }
    for (const CutVertex& vertex : row_.graph.vertices) total_bytes_ += vertex.keep;
    total_seconds_ = std::accumulate(row_.seconds.begin(), row_.seconds.end(), 0.0);
    // What an operator costs again, in bytes, must not overflow whatever the unit of seconds is.
    unit_ = total_seconds_ > 0 ? static_cast<double>(total_bytes_) / total_seconds_ : 0.0;
  }

  std::vector<uint8_t> kept_by(const Cut& cut) const {
    std::vector<uint8_t> kept(step_.values(), 1);
    for (size_t op = 0; op < step_.ops(); ++op) (void)op;
    for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
      for (const int32_t op : row_.ops[vertex]) {
        const bool last = op == row_.ops[vertex].back();
        for (const int32_t value : step_.makes[at(op)]) {
          if (useful_[at(value)]) kept[at(value)] = last && cut.kept[vertex];
        }
      }
    }
    return kept;
  }

  void price(double of_seconds) {
    for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
      row_.graph.vertices[vertex].drop = std::llround(of_seconds * unit_ * row_.seconds[vertex]);
    }
  }

  Cut cut(const CutSolver& solver, const std::vector<int64_t>& bounds) {
    const Cut found = solver.solve(bounds, kNoBound, kStates, 0.5);
    left_ -= found.steps;
    plans_.steps += found.steps;
    return found;
  }

  void cut_for_bounds(int64_t steps) {
    const int64_t stop = left_ - steps;
    for (const double of_seconds : kPrices) {
      price(of_seconds);
      const CutSolver solver(row_.graph);
      double bound = static_cast<double>(total_bytes_);
      for (int32_t i = 0; i < kBounds && left_ > stop; ++i, bound *= 0.75) {
        const Cut found = cut(solver, std::vector<int64_t>(row_.ops.size(), static_cast<int64_t>(bound)));
        if (!found.found) break;
        try_plan(kept_by(found));
      }
    }
  }

  std::vector<int64_t> budgets_between() const {
    const int64_t least = plans_.front.front().usage.peak;
    const int64_t most = plans_.front.back().usage.peak;
    std::vector<int64_t> budgets;
    for (int32_t i = 0; i < kBudgets; ++i) {
      // Closer together where little is left.
      const double share = static_cast<double>(i) / kBudgets;
      budgets.push_back(least + static_cast<int64_t>(static_cast<double>(most - least) * share * (0.5 + 0.5 * share)));
    }
    return budgets;
  }

  const CheckpointPlan* best_within(int64_t budget) const {
    const auto after =
        std::upper_bound(plans_.front.begin(), plans_.front.end(), budget,
                         [](int64_t bytes, const CheckpointPlan& plan) { return bytes < plan.usage.peak; });
    return after == plans_.front.begin() ? nullptr : &*std::prev(after);
  }

  // What a segment may take when backward repeats it, if what comes before it keeps as much as it does in a known plan.
  std::vector<int64_t> bounds_within(int64_t budget, const std::vector<uint8_t>& kept) {
    measure(kept);
    std::vector<int64_t> bounds(row_.ops.size());
    int64_t before = 0;
    for (size_t value = 0; value < step_.values(); ++value) {
      if (simulator_.keeps(value) && !simulator_.optional()[value]) before += step_.nbytes[value];
    }
    int64_t least = kNoBound;
    for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
      for (const int32_t op : row_.ops[vertex]) {
        for (const int32_t value : step_.makes[at(op)]) {
          if (simulator_.optional()[at(value)] && simulator_.keeps(at(value)) &&
              simulator_.ends()[at(value)] > simulator_.forward_ends()[at(value)]) {
            before += step_.nbytes[at(value)];
          }
        }
      }
      least = std::min(least, budget - before - step_.other[at(row_.events[vertex])]);
      bounds[vertex] = std::max<int64_t>(least, 0);
    }
    return bounds;
  }

  void cut_for_budgets(const std::vector<int64_t>& budgets, int64_t steps) {
    const int64_t stop = left_ - steps;
    for (int32_t round = 0; round < 2; ++round) {
      for (const double of_seconds : kPrices) {
        price(of_seconds);
        const CutSolver solver(row_.graph);
        for (const int64_t budget : budgets) {
          if (left_ < stop) return;
          const CheckpointPlan* known = best_within(budget);
          if (known == nullptr) continue;
          const Cut found = cut(solver, bounds_within(budget, known->kept));
          if (found.found) try_plan(kept_by(found));
        }
      }
    }
  }

  // One value after the other, whichever lowers the peak most.
  void lower_peak(int64_t steps) {
    const int64_t stop = left_ - steps;
    std::vector<uint8_t> kept = plans_.front.front().kept;
    while (left_ > stop) {
      const Usage now = measure(kept);
      const std::vector<int32_t> candidates = around(now.event, kept);
      Usage best = now;
      int32_t changed = -1;
      for (const int32_t value : candidates) {
        if (left_ <= stop) break;
        kept[at(value)] ^= 1;
        const Usage usage = measure(kept);
        enter(kept, usage);
        kept[at(value)] ^= 1;
        if (usage.peak < best.peak || (usage.peak == best.peak && usage.seconds < best.seconds && changed >= 0)) {
          best = usage;
          changed = value;
        }
      }
      if (changed < 0) break;
      kept[at(changed)] ^= 1;
    }
  }

  // Values that a change of could lower what is alive at an event of the last run: kept ones alive then, and those of the
  // segments that are repeated or alive then. Large ones first.
  std::vector<int32_t> around(int32_t event, const std::vector<uint8_t>& kept) {
    std::vector<int32_t> candidates;
    for (const int32_t value : choices_) {
      const int32_t producer = simulator_.producers()[at(value)];
      bool counts = false;
      if (kept[at(value)]) {
        counts = producer <= event && simulator_.ends()[at(value)] >= event;
      } else if (simulator_.repeated()[at(producer)]) {
        const int32_t replay = simulator_.replayed_at()[at(simulator_.segments()[at(producer)])];
        counts = replay == event || (replay <= event && simulator_.last_reads()[at(value)] >= event);
      }
      if (counts) candidates.push_back(value);
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](int32_t a, int32_t b) { return step_.nbytes[at(a)] > step_.nbytes[at(b)]; });
    return candidates;
  }

  void improve(int64_t budget, int64_t steps) {
    const int64_t stop = left_ - steps;
    const CheckpointPlan* start = best_within(budget);
    if (start == nullptr) return;
    std::vector<uint8_t> kept = start->kept;
    keep_more(budget, kept, (left_ + stop) / 2);
    // From the next plan above the budget, too: with what it takes to fit it.
    const auto above =
        std::upper_bound(plans_.front.begin(), plans_.front.end(), budget,
                         [](int64_t bytes, const CheckpointPlan& plan) { return bytes < plan.usage.peak; });
    if (above == plans_.front.end()) return;
    kept = above->kept;
    if (drop_more(budget, kept, (left_ + 3 * stop) / 4)) keep_more(budget, kept, stop);
  }

  // Keeps segments, then values, as far as the budget allows: those first that save the most seconds a byte.
  void keep_more(int64_t budget, std::vector<uint8_t>& kept, int64_t stop) {
    Usage now = measure(kept);
    struct Group {
      double worth;
      std::vector<int32_t> values;
    };
    std::vector<Group> groups;
    std::vector<int32_t> group_of(step_.ops(), -1);
    for (const int32_t value : choices_) {
      const int32_t producer = simulator_.producers()[at(value)];
      if (kept[at(value)] || !simulator_.repeated()[at(producer)] || !simulator_.wanted()[at(value)]) continue;
      int32_t& group = group_of[at(simulator_.segments()[at(producer)])];
      if (group < 0) {
        group = static_cast<int32_t>(groups.size());
        groups.push_back({0.0, {}});
      }
      groups[at(group)].values.push_back(value);
    }
    for (size_t i = groups.size(); i-- > 0;) {
      if (groups[i].values.size() == 1) continue;
      for (const int32_t value : groups[i].values) groups.push_back({0.0, {value}});
    }
    for (Group& group : groups) {
      double seconds = 0;
      double bytes = 1;
      int32_t last = -1;
      for (const int32_t value : group.values) {
        const int32_t producer = simulator_.producers()[at(value)];
        if (producer != last) seconds += step_.seconds[at(producer)];
        last = producer;
        bytes += static_cast<double>(step_.nbytes[at(value)]);
      }
      group.worth = seconds / bytes;
    }
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.worth > b.worth; });
    for (const Group& group : groups) {
      if (left_ <= stop) return;
      if (std::all_of(group.values.begin(), group.values.end(), [&](int32_t v) { return kept[at(v)] != 0; })) continue;
      std::vector<uint8_t> next = kept;
      for (const int32_t value : group.values) next[at(value)] = 1;
      const Usage usage = try_plan(next);
      if (usage.peak > budget || usage.seconds > now.seconds) continue;
      if (usage.seconds == now.seconds && usage.peak >= now.peak) continue;
      kept = std::move(next);
      now = usage;
    }
  }

  // Changes one value after the other until the budget is met: those first that save the most bytes a second.
  bool drop_more(int64_t budget, std::vector<uint8_t>& kept, int64_t stop) {
    constexpr size_t kMostCandidates = 24;
    Usage now = measure(kept);
    while (now.peak > budget && left_ > stop) {
      measure(kept);
      std::vector<int32_t> candidates = around(now.event, kept);
      std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
        return seconds_a_byte(a) < seconds_a_byte(b);
      });
      if (candidates.size() > kMostCandidates) candidates.resize(kMostCandidates);
      int32_t changed = -1;
      Usage best = now;
      double worth = 0;
      for (const int32_t value : candidates) {
        if (left_ <= stop) break;
        kept[at(value)] ^= 1;
        const Usage usage = try_plan(kept);
        kept[at(value)] ^= 1;
        const auto saved = static_cast<double>(now.peak - std::max(usage.peak, budget));
        if (saved <= 0) continue;
        const double gain = saved / std::max(usage.seconds - now.seconds, 1e-6 * total_seconds_);
        if (changed >= 0 && gain <= worth) continue;
        worth = gain;
        best = usage;
        changed = value;
      }
      if (changed < 0) return false;
      kept[at(changed)] ^= 1;
      now = best;
    }
    return now.peak <= budget;
  }

  double seconds_a_byte(int32_t value) const {
    return step_.seconds[at(simulator_.producers()[at(value)])] / static_cast<double>(step_.nbytes[at(value)] + 1);
  }

  // What nothing makes again counts as kept.
  void tidy(CheckpointPlan& plan) {
    simulator_.run(plan.kept);
    for (size_t value = 0; value < step_.values(); ++value) {
      plan.kept[value] = simulator_.keeps(value) || !simulator_.repeated()[at(simulator_.producers()[value])];
    }
  }

  const TrainingStep& step_;
  Simulator simulator_;
  std::vector<uint8_t> useful_;
  std::vector<int32_t> choices_;
  Row row_;
  int64_t total_bytes_ = 0;
  double total_seconds_ = 0;
  double unit_ = 0;
  int64_t left_;
  int64_t visit_cost_ = 0;
  Plans plans_;
};

}  // namespace

Plans find_plans(const TrainingStep& step, int64_t max_steps) { return Planner(step, max_steps).run(); }

}  // namespace actcore
