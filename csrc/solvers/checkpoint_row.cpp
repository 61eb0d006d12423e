#include "solvers/checkpoint_row.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "solvers/index.h"

namespace actcore {

namespace {

constexpr size_t kStates = 32;
constexpr int64_t kStepsAState = 4;                                  // takes as long as so many simulated events
constexpr int32_t kBounds = 14;                                      // of segments, each 3/4 of the one before
constexpr double kPrices[] = {0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0};  // of all operators' seconds, in all values' bytes

}  // namespace

RowCuts::RowCuts(PlanPool& pool) : pool_(pool) { build_row(); }

void RowCuts::build_row() {
  std::vector<std::vector<int32_t>> readers(pool_.step.values());
  for (size_t op = 0; op < pool_.step.ops(); ++op) {
    for (const int32_t value : pool_.step.reads[op]) {
      if (readers[at(value)].empty() || readers[at(value)].back() != static_cast<int32_t>(op)) {
        readers[at(value)].push_back(static_cast<int32_t>(op));
      }
    }
  }
  std::vector<int32_t> joins(pool_.step.ops());  // the operator that it is repeated with
  std::vector<uint8_t> counts(pool_.step.ops(), 0);
  for (size_t op = pool_.step.ops(); op-- > 0;) {
    joins[op] = static_cast<int32_t>(op);
    bool alone = true;
    int32_t reader = -1;
    for (const int32_t value : pool_.step.makes[op]) {
      if (!pool_.useful[at(value)]) continue;
      counts[op] = 1;
      alone = alone && !pool_.facts.wanted()[at(value)];
      for (const int32_t other : readers[at(value)]) {
        if (!counts[at(other)]) continue;
        alone = alone && (reader < 0 || reader == other);
        reader = other;
      }
    }
    if (counts[op] && alone && reader >= 0) joins[op] = joins[at(reader)];
  }
  std::vector<int32_t> vertices(pool_.step.ops(), -1);
  for (size_t op = 0; op < pool_.step.ops(); ++op) {
    if (!counts[op] || joins[op] != static_cast<int32_t>(op)) continue;
    vertices[op] = static_cast<int32_t>(row_.ops.size());
    row_.ops.emplace_back();
  }
  const size_t count = row_.ops.size();
  row_.seconds.assign(count, 0.0);
  row_.events.assign(count, static_cast<int32_t>(pool_.step.ops()));
  row_.graph.vertices.assign(count, {0, 0, 0, false, true});
  row_.graph.before.resize(count);
  for (size_t op = 0; op < pool_.step.ops(); ++op) {
    if (!counts[op]) continue;
    const int32_t vertex = vertices[at(joins[op])];
    row_.ops[at(vertex)].push_back(static_cast<int32_t>(op));
    row_.seconds[at(vertex)] += pool_.step.seconds[op];
    for (const int32_t value : pool_.step.reads[op]) {
      const int32_t other = vertices[at(joins[at(pool_.facts.producers()[at(value)])])];
      if (other >= 0 && other != vertex) {
        auto& before = row_.graph.before[at(std::max(other, vertex))];
        before.push_back(std::min(other, vertex));
      }
    }
    CutVertex& numbers = row_.graph.vertices[at(vertex)];
    for (const int32_t value : pool_.step.makes[op]) {
      if (!pool_.useful[at(value)]) continue;
      const bool own = joins[op] == static_cast<int32_t>(op);
      if (pool_.facts.wanted()[at(value)]) {
        numbers.weight += pool_.step.nbytes[at(value)];
        row_.events[at(vertex)] = std::max(row_.events[at(vertex)], pool_.facts.last_reads()[at(value)]);
      }
      if (!own) continue;
      if (pool_.facts.optional()[at(value)]) {
        numbers.may_keep = true;
        numbers.keep += pool_.step.nbytes[at(value)];
      } else if (pool_.simulator.keeps(at(value))) {
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

Assignment RowCuts::plan_of(const Cut& cut) const {
  Assignment plan = pool_.everything();
  for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
    for (const int32_t op : row_.ops[vertex]) {
      const bool last = op == row_.ops[vertex].back();
      for (const int32_t value : pool_.step.makes[at(op)]) {
        if (pool_.useful[at(value)]) pool_.set_value(value, last && cut.kept[vertex], plan);
      }
    }
  }
  return plan;
}

void RowCuts::price(double of_seconds) {
  for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
    // Shares, so that nothing overflows whatever the unit of seconds is.
    const double share = total_seconds_ > 0 ? row_.seconds[vertex] / total_seconds_ : 0.0;
    row_.graph.vertices[vertex].drop = std::llround(of_seconds * static_cast<double>(total_bytes_) * share);
  }
}

Cut RowCuts::cut(const CutSolver& solver, const std::vector<int64_t>& bounds) {
  const Cut found = solver.solve(bounds, kNoBound, kStates, 0.5);
  pool_.left -= kStepsAState * found.steps;
  pool_.steps += kStepsAState * found.steps;
  return found;
}

void RowCuts::cut_for_bounds(int64_t steps) {
  const int64_t stop = pool_.left - steps;
  for (const double of_seconds : kPrices) {
    price(of_seconds);
    const CutSolver solver(row_.graph);
    double bound = static_cast<double>(total_bytes_);
    for (int32_t i = 0; i < kBounds && pool_.left > stop; ++i, bound *= 0.75) {
      const Cut found = cut(solver, std::vector<int64_t>(row_.ops.size(), static_cast<int64_t>(bound)));
      if (!found.found) break;
      found_.push_back(plan_of(found));
      pool_.try_plan(found_.back());
    }
  }
}

std::vector<Assignment> RowCuts::cut_at(double bytes_a_second, const std::vector<double>& costs, int64_t stop) {
  const CutGraph as_they_are = row_.graph;
  const auto most = static_cast<double>(kNoBound / (4 * static_cast<int64_t>(row_.ops.size()) + 4));
  const auto rounded = [&](double cost) { return static_cast<int64_t>(std::min(most, cost)); };
  for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
    CutVertex& numbers = row_.graph.vertices[vertex];
    double cost = 0;
    for (const int32_t value : pool_.step.makes[at(row_.ops[vertex].back())]) {
      if (pool_.useful[at(value)] && pool_.facts.optional()[at(value)]) cost += costs[at(value)];
    }
    numbers.keep = rounded(cost);
    numbers.drop = rounded(bytes_a_second * row_.seconds[vertex]);
  }
  std::vector<Assignment> plans;
  const CutSolver solver(row_.graph);
  double bound = static_cast<double>(total_bytes_);
  for (int32_t i = 0; i < kBounds && pool_.left > stop; i += 2, bound *= 0.75 * 0.75) {
    const Cut found = cut(solver, std::vector<int64_t>(row_.ops.size(), static_cast<int64_t>(bound)));
    if (!found.found) break;
    plans.push_back(plan_of(found));
  }
  row_.graph = as_they_are;
  return plans;
}

// What a segment may take when backward repeats it, if what comes before it keeps as much as it does in a known plan.
std::vector<int64_t> RowCuts::bounds_within(int64_t budget, const Assignment& plan) {
  pool_.measure(plan);
  std::vector<int64_t> bounds(row_.ops.size());
  int64_t before = 0;
  for (size_t value = 0; value < pool_.step.values(); ++value) {
    if (pool_.simulator.keeps(value) && !pool_.facts.optional()[value]) before += pool_.step.nbytes[value];
  }
  int64_t least = kNoBound;
  for (size_t vertex = 0; vertex < row_.ops.size(); ++vertex) {
    for (const int32_t op : row_.ops[vertex]) {
      for (const int32_t value : pool_.step.makes[at(op)]) {
        if (pool_.facts.optional()[at(value)] && pool_.simulator.keeps(at(value)) &&
            pool_.simulator.ends()[at(value)] > pool_.facts.forward_ends()[at(value)]) {
          before += pool_.step.nbytes[at(value)];
        }
      }
    }
    least = std::min(least, budget - before - pool_.step.other[at(row_.events[vertex])]);
    bounds[vertex] = std::max<int64_t>(least, 0);
  }
  return bounds;
}

void RowCuts::cut_for_budgets(const std::vector<int64_t>& budgets, int64_t steps) {
  const int64_t stop = pool_.left - steps;
  for (int32_t round = 0; round < 2; ++round) {
    for (const double of_seconds : kPrices) {
      price(of_seconds);
      const CutSolver solver(row_.graph);
      for (const int64_t budget : budgets) {
        if (pool_.left < stop) return;
        const CheckpointPlan* known = pool_.best_within(budget);
        if (known == nullptr) continue;
        const Cut found = cut(solver, bounds_within(budget, known->chosen));
        if (found.found) pool_.try_plan(plan_of(found));
      }
    }
  }
}

// The same for budgets that no known plan fits: what comes of it may still have a lower peak than all.
void RowCuts::cut_below(int64_t steps) {
  const int64_t stop = pool_.left - steps;
  for (const double of_seconds : {0.0, 0.1, 0.3}) {
    price(of_seconds);
    const CutSolver solver(row_.graph);
    Assignment plan = pool_.front.front().chosen;
    for (double share = 1.02; share > 0.6; share -= 0.03) {
      if (pool_.left < stop) return;
      const auto budget = static_cast<int64_t>(share * static_cast<double>(pool_.front.front().usage.peak));
      const Cut found = cut(solver, bounds_within(budget, plan));
      if (!found.found) break;
      plan = plan_of(found);
      pool_.try_plan(plan);
    }
  }
}

}  // namespace actcore
