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
constexpr int64_t kStepsAState = 4;                                  // takes as long as so many simulated events
constexpr int32_t kBounds = 14;                                      // of segments, each 3/4 of the one before
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
    if (choices_.empty()) {
      plans_.exact = true;
    } else if (choices_.size() < 20 && (int64_t{1} << choices_.size()) * visit_cost_ <= left_) {
      try_all();
      plans_.exact = true;
    } else {
      build_row();
      const int64_t total = left_;
      drop_by_worth(total / 12);
      cut_for_bounds(total / 4);
      cut_below(total / 12);
      lower_peak(total / 8);
      const std::vector<int64_t> budgets = budgets_between();
      cut_for_budgets(budgets, total / 6);
      lower_peak(total / 16);
      for (size_t i = 0; i < budgets.size(); ++i) improve(budgets[i], left_ / static_cast<int64_t>(budgets.size() - i));
      change_at_random();
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
    chosen_.resize(step_.ops());
    chosen_bytes_.resize(step_.ops(), 0);
    wanted_bytes_.resize(step_.ops(), 0);
    for (const int32_t value : choices_) {
      const size_t op = at(simulator_.producers()[at(value)]);
      if (chosen_[op].empty()) choosing_.push_back(static_cast<int32_t>(op));
      chosen_[op].push_back(value);
      chosen_bytes_[op] += step_.nbytes[at(value)];
      if (simulator_.wanted()[at(value)]) wanted_bytes_[op] += step_.nbytes[at(value)];
    }
    before_.resize(step_.ops());
    behind_.resize(step_.ops());
    for (const int32_t op : choosing_) {
      for (const int32_t value : step_.reads[at(op)]) {
        const int32_t producer = simulator_.producers()[at(value)];
        if (chosen_[at(producer)].empty()) continue;
        before_[at(op)].push_back(producer);
        behind_[at(producer)].push_back(op);
      }
    }
  }

  Usage measure(const std::vector<uint8_t>& kept) {
    left_ -= visit_cost_;
    plans_.steps += visit_cost_;
    return simulator_.run(kept);
  }

  // Enters a plan in the front, unless another one is at least as good.
  bool enter(const std::vector<uint8_t>& kept, const Usage& usage) {
    auto& front = plans_.front;
    const auto place =
        std::upper_bound(front.begin(), front.end(), usage.peak,
                         [](int64_t peak, const CheckpointPlan& plan) { return peak < plan.usage.peak; });
    if (place != front.begin() && std::prev(place)->usage.seconds <= usage.seconds) return false;
    const auto beaten = [&](const CheckpointPlan& plan) {
      return plan.usage.peak >= usage.peak && plan.usage.seconds >= usage.seconds;
    };
    std::erase_if(front, beaten);
    const auto after =
        std::upper_bound(front.begin(), front.end(), usage.peak,
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
  }

  std::vector<uint8_t> kept_by(const Cut& cut) const {
    std::vector<uint8_t> kept(step_.values(), 1);
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
      // Shares, so that nothing overflows whatever the unit of seconds is.
      const double share = total_seconds_ > 0 ? row_.seconds[vertex] / total_seconds_ : 0.0;
      row_.graph.vertices[vertex].drop = std::llround(of_seconds * static_cast<double>(total_bytes_) * share);
    }
  }

  Cut cut(const CutSolver& solver, const std::vector<int64_t>& bounds) {
    const Cut found = solver.solve(bounds, kNoBound, kStates, 0.5);
    left_ -= kStepsAState * found.steps;
    plans_.steps += kStepsAState * found.steps;
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

  // The same for budgets that no known plan fits: what comes of it may still have a lower peak than all.
  void cut_below(int64_t steps) {
    const int64_t stop = left_ - steps;
    for (const double of_seconds : {0.0, 0.1, 0.3}) {
      price(of_seconds);
      const CutSolver solver(row_.graph);
      std::vector<uint8_t> kept = plans_.front.front().kept;
      for (double share = 1.02; share > 0.6; share -= 0.03) {
        if (left_ < stop) return;
        const auto budget = static_cast<int64_t>(share * static_cast<double>(plans_.front.front().usage.peak));
        const Cut found = cut(solver, bounds_within(budget, kept));
        if (!found.found) break;
        kept = kept_by(found);
        try_plan(kept);
      }
    }
  }

  // Changes of one operator's values: they are kept or dropped, or dropped and those before or behind it kept instead, which
  // moves the border of a segment. Or the largest of several changes alone.
  enum class Move { kFlip, kBefore, kBehind, kLargest };
  static constexpr Move kMoves[] = {Move::kFlip, Move::kBefore, Move::kBehind, Move::kLargest};

  bool make(Move move, int32_t op, std::vector<uint8_t>& kept) const {
    const auto& values = chosen_[at(op)];
    if (move == Move::kLargest) {
      if (values.size() < 2) return false;
      const auto largest = std::max_element(values.begin(), values.end(), [&](int32_t a, int32_t b) {
        return step_.nbytes[at(a)] < step_.nbytes[at(b)];
      });
      kept[at(*largest)] ^= 1;
      return true;
    }
    const bool keeps = keeps_all(op, kept);
    if (move != Move::kFlip && !keeps) return false;
    set(op, !keeps, kept);
    bool changed = move == Move::kFlip;
    const auto& others = move == Move::kBehind ? behind_[at(op)] : before_[at(op)];
    if (move == Move::kFlip) return true;
    for (const int32_t other : others) {
      if (keeps_all(other, kept)) continue;
      set(other, true, kept);
      changed = true;
    }
    return changed;
  }

  // One change after the other, whichever lowers the peak most, from each of the plans with the lowest peaks.
  void lower_peak(int64_t steps) {
    constexpr size_t kStarts = 4;
    std::vector<std::vector<uint8_t>> starts;
    const size_t count = plans_.front.size();
    for (size_t i = 0; i < kStarts && i < count; ++i) starts.push_back(plans_.front[i * i < count ? i * i : i].kept);
    for (size_t i = 0; i < starts.size(); ++i) {
      descend(std::move(starts[i]), left_ - steps / static_cast<int64_t>(starts.size()));
    }
  }

  void descend(std::vector<uint8_t> kept, int64_t stop) {
    std::vector<uint8_t> next;
    std::vector<uint8_t> found;
    while (left_ > stop) {
      const Usage now = measure(kept);
      Usage best = now;
      for (const int32_t op : around(now.event)) {
        for (const Move move : kMoves) {
          if (left_ <= stop) return;
          next = kept;
          if (!make(move, op, next)) continue;
          const Usage usage = try_plan(next);
          if (usage.peak > best.peak || (usage.peak == best.peak && usage.seconds >= best.seconds)) continue;
          best = usage;
          found = next;
        }
      }
      if (best.peak == now.peak && best.seconds == now.seconds) return;
      kept = found;
    }
  }

  // Operators whose values' change could lower what is alive at an event of the last run: of values kept and alive then, and
  // those of the segments that are repeated or alive then.
  std::vector<int32_t> around(int32_t event) const {
    std::vector<int32_t> candidates;
    for (const int32_t op : choosing_) {
      bool counts = false;
      if (simulator_.repeated()[at(op)]) {
        const int32_t replay = simulator_.replayed_at()[at(simulator_.segments()[at(op)])];
        counts = replay == event;
      }
      for (const int32_t value : chosen_[at(op)]) {
        const int32_t end =
            simulator_.keeps(at(value)) ? simulator_.ends()[at(value)] : simulator_.last_reads()[at(value)];
        counts = counts || (op <= event && end >= event);
      }
      if (counts) candidates.push_back(op);
    }
    return candidates;
  }

  bool keeps_all(int32_t op, const std::vector<uint8_t>& kept) const {
    return std::all_of(chosen_[at(op)].begin(), chosen_[at(op)].end(), [&](int32_t v) { return kept[at(v)] != 0; });
  }

  void set(int32_t op, bool keep, std::vector<uint8_t>& kept) const {
    for (const int32_t value : chosen_[at(op)]) kept[at(value)] = keep;
  }

  void improve(int64_t budget, int64_t steps) {
    const int64_t stop = left_ - steps;
    for (const double share : {1.0, 0.9, 0.75}) {
      const CheckpointPlan* start = best_within(static_cast<int64_t>(share * static_cast<double>(budget)));
      if (start == nullptr) break;
      std::vector<uint8_t> kept = start->kept;
      keep_more(budget, kept, left_ - (left_ - stop) / 4);
    }
    // More than the budget allows, and then what it takes to fit it.
    for (const double excess : {0.01, 0.04, 0.1, 0.2}) {
      const auto over = static_cast<int64_t>((1 + excess) * static_cast<double>(budget));
      const CheckpointPlan* start = best_within(over);
      if (start == nullptr || left_ <= stop) break;
      std::vector<uint8_t> kept = start->kept;
      if (drop_more(budget, kept, left_ - (left_ - stop) / 3)) keep_more(budget, kept, left_ - (left_ - stop) / 3);
    }
  }

  // Keeps segments, then the values of single operators, as far as the budget allows: those first that save most seconds a byte.
  void keep_more(int64_t budget, std::vector<uint8_t>& kept, int64_t stop) {
    Usage now = measure(kept);
    struct Group {
      double worth = 0;
      std::vector<int32_t> ops;
    };
    std::vector<Group> groups;
    std::vector<int32_t> group_of(step_.ops(), -1);
    for (const int32_t op : choosing_) {
      if (!simulator_.repeated()[at(op)]) continue;
      int32_t& group = group_of[at(simulator_.segments()[at(op)])];
      if (group < 0) {
        group = static_cast<int32_t>(groups.size());
        groups.emplace_back();
      }
      if (wanted_bytes_[at(op)] > 0) groups[at(group)].ops.push_back(op);
    }
    for (const int32_t op : choosing_) {
      if (!simulator_.repeated()[at(op)]) continue;
      groups.emplace_back();
      groups.back().ops.push_back(op);
    }
    for (Group& group : groups) {
      double seconds = 0;
      double bytes = 1;
      for (const int32_t op : group.ops) {
        seconds += step_.seconds[at(op)];
        bytes += static_cast<double>(chosen_bytes_[at(op)]);
      }
      group.worth = seconds / bytes;
    }
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.worth > b.worth; });
    std::vector<uint8_t> next;
    for (const Group& group : groups) {
      if (left_ <= stop) return;
      if (std::all_of(group.ops.begin(), group.ops.end(), [&](int32_t op) { return keeps_all(op, kept); })) continue;
      next = kept;
      for (const int32_t op : group.ops) set(op, true, next);
      const Usage usage = try_plan(next);
      if (usage.peak > budget || usage.seconds > now.seconds) continue;
      if (usage.seconds == now.seconds && usage.peak >= now.peak) continue;
      kept.swap(next);
      now = usage;
    }
  }

  // Changes one operator's values after the other's until the budget is met: those first that save the most bytes a second.
  bool drop_more(int64_t budget, std::vector<uint8_t>& kept, int64_t stop) {
    constexpr size_t kMostCandidates = 24;
    Usage now = measure(kept);
    std::vector<uint8_t> next;
    std::vector<uint8_t> found;
    while (now.peak > budget && left_ > stop) {
      measure(kept);
      std::vector<int32_t> candidates = around(now.event);
      std::stable_sort(candidates.begin(), candidates.end(),
                       [&](int32_t a, int32_t b) { return seconds_a_byte(a) < seconds_a_byte(b); });
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
          if (left_ <= stop) break;
          next = kept;
          if (!make(move, op, next)) continue;
          const Usage usage = try_plan(next);
          const auto saved = static_cast<double>(now.peak - std::max(usage.peak, budget));
          if (saved <= 0) continue;
          const double gain = saved / std::max(usage.seconds - now.seconds, 1e-6 * total_seconds_);
          if (gain <= worth) continue;
          worth = gain;
          best = usage;
          found = next;
        }
      }
      if (worth < 0) return false;
      kept = found;
      now = best;
    }
    return now.peak <= budget;
  }

  // What is left of the steps goes into known plans with a few values changed, the same ones each time. Small steps only have any.
  void change_at_random() {
    uint64_t state = 0x9e3779b97f4a7c15u;
    const auto draw = [&](size_t count) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      return static_cast<size_t>(state % count);
    };
    while (left_ > 0) {
      const CheckpointPlan& plan = plans_.front[draw(2) == 0 ? 0 : draw(plans_.front.size())];
      const int64_t budget = plan.usage.peak;
      std::vector<uint8_t> kept = plan.kept;
      for (size_t changes = 1 + draw(4); changes-- > 0;) kept[at(choices_[draw(choices_.size())])] ^= 1;
      const Usage usage = try_plan(kept);
      if (usage.peak <= budget) {
        keep_more(budget, kept, left_ / 2);
      } else if (drop_more(budget, kept, left_ / 2)) {
        keep_more(budget, kept, left_ / 2);
      }
    }
  }

  double seconds_a_byte(int32_t op) const {
    return step_.seconds[at(op)] / static_cast<double>(chosen_bytes_[at(op)] + 1);
  }

  // What takes the fewest seconds a byte is dropped first, each time a few operators more.
  void drop_by_worth(int64_t steps) {
    const int64_t stop = left_ - steps;
    for (const bool late : {false, true}) {
      std::vector<int32_t> ops = choosing_;
      if (late) std::reverse(ops.begin(), ops.end());
      std::stable_sort(ops.begin(), ops.end(),
                       [&](int32_t a, int32_t b) { return seconds_a_byte(a) < seconds_a_byte(b); });
      std::vector<uint8_t> kept(step_.values(), 1);
      const auto stride = std::max<int64_t>(1, static_cast<int64_t>(ops.size()) * visit_cost_ * 2 / (steps + 1));
      for (size_t i = 0; i < ops.size() && left_ > stop; ++i) {
        set(ops[i], false, kept);
        if (static_cast<int64_t>(i) % stride == 0) try_plan(kept);
      }
    }
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
  std::vector<uint8_t> useful_;               // of values: backward reads it, or what follows from it
  std::vector<int32_t> choices_;              // values that may be kept or made again
  std::vector<int32_t> choosing_;             // operators that make such values
  std::vector<std::vector<int32_t>> chosen_;  // of operators: these values
  std::vector<std::vector<int32_t>> before_,
      behind_;  // of such operators: those whose values they read, and that read theirs
  std::vector<int64_t> chosen_bytes_, wanted_bytes_;
  Row row_;
  int64_t total_bytes_ = 0;
  double total_seconds_ = 0;
  int64_t left_;
  int64_t visit_cost_ = 0;
  Plans plans_;
};

}  // namespace

Plans find_plans(const TrainingStep& step, int64_t max_steps) { return Planner(step, max_steps).run(); }

}  // namespace actcore
