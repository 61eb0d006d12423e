#include "solvers/allocation_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace actcore {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What is known of choosing `items[position]` at the price of the relaxation: base minimises cost + price * bytes in every
// tensor, so a deviation adds what it is above that minimum to the relaxation's bound (the Lagrangian bound).
Deviation deviate(const Items& items, int32_t base, int32_t position, double price, const Core& core) {
  const int64_t nbytes = items[position].nbytes - items[base].nbytes;
  const double saved = items[base].cost - items[position].cost;
  const double paid = price * static_cast<double>(nbytes);
  const double error = core.rounding * (std::abs(saved) + std::abs(paid));
  return {nbytes, items[position].cost, core.bound + std::max(paid - saved - error, 0.0), position};
}

CoreTensor core_tensor(const Items& items, int32_t tensor, int32_t base, double price, double limit, const Core& core) {
  CoreTensor result{tensor, kInfinity, 0.0, kInfinity, {}};
  for (int32_t position = 0; position < static_cast<int32_t>(items.size()); ++position) {
    const Deviation deviation = deviate(items, base, position, price, core);
    if (position != base) {
      if (std::max(deviation.bound, deviation.cost) >= limit) continue;
      result.nearest = std::min(result.nearest, deviation.bound);
      const double slope = (items[base].cost - deviation.cost) / static_cast<double>(deviation.nbytes);
      if (deviation.nbytes > 0) result.upgrade = std::max(result.upgrade, slope);
      if (deviation.nbytes < 0) result.downgrade = std::min(result.downgrade, slope);
    }
    result.deviations.push_back(deviation);
  }
  return result;
}

// Choices for the tensors so far. Of two states the one with fewer bytes must cost more, or the other is forgotten.
struct State {
  int64_t excess;  // bytes above the budget if all other tensors stay at base
  double cost;     // of the tensors so far
  int32_t parent;  // in the layer before
  int32_t deviation;
};

using Layer = std::vector<State>;

// What one tensor adds to the states before it.
Layer deviated(const Layer& states, const Deviation& deviation, int32_t index) {
  Layer result;
  result.reserve(states.size());
  for (size_t parent = 0; parent < states.size(); ++parent) {
    result.push_back({states[parent].excess + deviation.nbytes, states[parent].cost + deviation.cost,
                      static_cast<int32_t>(parent), index});
  }
  return result;
}

Layer merge_undominated(const Layer& a, const Layer& b) {
  Layer result;
  result.reserve(a.size() + b.size());
  const auto before = [](const State& x, const State& y) {
    return x.excess != y.excess ? x.excess < y.excess : x.cost < y.cost;
  };
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    const State& next = j == b.size() || (i < a.size() && !before(b[j], a[i])) ? a[i++] : b[j++];
    if (result.empty() || next.cost < result.back().cost) result.push_back(next);
  }
  return result;
}

// What the tensors after the ones so far can still do.
struct Rest {
  double cost;       // at base
  double upgrade;    // the most that a byte more can save
  double downgrade;  // the least that a byte less can cost
};

std::vector<Rest> rests(const Core& core, const std::vector<double>& base_costs) {
  std::vector<Rest> result(core.tensors.size() + 1, {core.fixed_cost, 0.0, kInfinity});
  for (size_t i = core.tensors.size(); i-- > 0;) {
    result[i].cost = result[i + 1].cost + base_costs[i];
    result[i].upgrade = std::max(result[i + 1].upgrade, core.tensors[i].upgrade);
    result[i].downgrade = std::min(result[i + 1].downgrade, core.tensors[i].downgrade);
  }
  return result;
}

// No solution that goes on from the state costs less. The sums' own error is taken off, because a solution can be cheaper
// than the sums by more digits than a double has.
double bound_of(const State& state, const Rest& rest, double rounding) {
  const double cost = state.cost + rest.cost;
  const double bytes = static_cast<double>(state.excess);
  if (state.excess > 0) return (cost + bytes * rest.downgrade) * (1 - rounding);
  return cost * (1 - rounding) + bytes * rest.upgrade * (1 + rounding);
}

// Forgets the states that cannot lead below `limit`, and the least promising ones above `width`. Returns the least bound
// of the latter.
double prune(Layer& states, const Rest& rest, double rounding, double limit, size_t width) {
  using Rank = std::pair<double, int64_t>;  // of equal bounds, the state closer to the budget is better
  std::vector<Rank> ranks;
  size_t kept = 0;
  for (const State& state : states) {
    const double bound = bound_of(state, rest, rounding);
    if (bound >= limit) continue;
    states[kept++] = state;
    ranks.emplace_back(bound, std::abs(state.excess));
  }
  if (kept <= width) {
    states.resize(kept);
    return kInfinity;
  }
  std::vector<Rank> sorted = ranks;
  const auto cut = sorted.begin() + static_cast<std::ptrdiff_t>(width);
  std::nth_element(sorted.begin(), cut, sorted.end());
  size_t remembered = 0;
  for (size_t i = 0; i < kept; ++i) {
    if (ranks[i] < *cut) states[remembered++] = states[i];
  }
  states.resize(remembered);
  return cut->first;
}

// The last state within the budget is the cheapest, because costs descend as bytes ascend.
int32_t cheapest_feasible(const Layer& states) {
  const auto end = std::partition_point(states.begin(), states.end(), [](const State& s) { return s.excess <= 0; });
  return static_cast<int32_t>(end - states.begin()) - 1;
}

}  // namespace

Core make_core(const std::vector<Items>& tensors, const Relaxation& relaxation, double limit) {
  // A sum of n numbers of one sign is off by at most n half units in the last place; a bound adds a few operations.
  const double rounding = (static_cast<double>(tensors.size()) + 16) * std::numeric_limits<double>::epsilon();
  Core core{{}, 0.0, 0.0, rounding, 0};
  double base_cost = 0;
  for (size_t i = 0; i < tensors.size(); ++i) base_cost += tensors[i][relaxation.base[i]].cost;
  const double bought = relaxation.price * static_cast<double>(relaxation.slack);
  core.bound = std::max(base_cost - bought - rounding * (base_cost + bought), 0.0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int32_t base = relaxation.base[i];
    CoreTensor found = core_tensor(tensors[i], static_cast<int32_t>(i), base, relaxation.price, limit, core);
    if (found.nearest < kInfinity) {
      core.choices += static_cast<int64_t>(found.deviations.size());
      core.tensors.push_back(std::move(found));
    } else {
      core.fixed_cost += tensors[i][base].cost;
    }
  }
  std::stable_sort(core.tensors.begin(), core.tensors.end(),
                   [](const CoreTensor& a, const CoreTensor& b) { return a.nearest < b.nearest; });
  return core;
}

Search search(const Core& core, const Relaxation& relaxation, size_t width, Solution& best) {
  std::vector<double> base_costs;
  for (const CoreTensor& tensor : core.tensors) {
    for (const Deviation& deviation : tensor.deviations) {
      if (deviation.position == relaxation.base[tensor.tensor]) base_costs.push_back(deviation.cost);
    }
  }
  const std::vector<Rest> rest = rests(core, base_costs);
  Search result;
  std::vector<Layer> layers{{{-relaxation.slack, 0.0, -1, -1}}};
  for (size_t i = 0; i < core.tensors.size() && !layers.back().empty(); ++i) {
    const std::vector<Deviation>& deviations = core.tensors[i].deviations;
    Layer states;
    for (size_t index = 0; index < deviations.size(); ++index) {
      const Layer more = deviated(layers.back(), deviations[index], static_cast<int32_t>(index));
      result.steps += static_cast<int64_t>(more.size());
      states = merge_undominated(states, more);
    }
    layers.push_back(std::move(states));
    const int32_t found = cheapest_feasible(layers.back());
    if (found >= 0 && layers.back()[found].cost + rest[i + 1].cost < best.cost) {
      best.cost = layers.back()[found].cost + rest[i + 1].cost;
      best.positions = relaxation.base;
      int32_t state = found;
      for (size_t layer = i + 1; layer > 0; --layer) {
        const CoreTensor& tensor = core.tensors[layer - 1];
        best.positions[tensor.tensor] = tensor.deviations[layers[layer][state].deviation].position;
        state = layers[layer][state].parent;
      }
    }
    const double limit = best.cost * (1 - kOptimality);
    result.forgotten = std::min(result.forgotten, prune(layers.back(), rest[i + 1], core.rounding, limit, width));
    layers.back().shrink_to_fit();
  }
  return result;
}

}  // namespace actcore
