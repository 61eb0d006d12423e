#include "solvers/checkpoint_cut.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace actcore {

namespace {

// A slot's label takes 4 bits: 0 for a kept vertex, and for no vertex at all, else its piece, from 1.
constexpr int32_t kSlots = 32;
constexpr int32_t kPieces = 12;

struct State {
  std::array<uint64_t, 2> labels{};
  int64_t cost = 0;
  int32_t trace = -1;
  uint8_t kept = 0;
  uint8_t pieces = 0;
  std::array<int64_t, kPieces> weights{};
};

struct Trace {
  int32_t before;
  uint8_t kept;
};

uint32_t label_of(const State& state, int32_t slot) {
  return static_cast<uint32_t>(state.labels[static_cast<size_t>(slot >> 4)] >> ((slot & 15) * 4)) & 15u;
}

void set_label(State& state, int32_t slot, uint32_t label) {
  uint64_t& word = state.labels[static_cast<size_t>(slot >> 4)];
  const int32_t shift = (slot & 15) * 4;
  word = (word & ~(uint64_t{15} << shift)) | (uint64_t{label} << shift);
}

// Pieces are numbered in the order of the slots, so that equal states have equal labels.
bool renumber(State& state, const std::array<uint32_t, 16>& merged, const std::array<int64_t, 16>& weights,
              const std::vector<int32_t>& active) {
  std::array<uint8_t, 16> renamed{};
  State next;
  uint8_t pieces = 0;
  for (const int32_t slot : active) {
    const uint32_t label = merged[label_of(state, slot)];
    if (label == 0) continue;
    if (renamed[label] == 0) {
      if (pieces == kPieces) return false;
      next.weights[pieces] = weights[label];
      renamed[label] = ++pieces;
    }
    set_label(next, slot, renamed[label]);
  }
  state.labels = next.labels;
  state.weights = next.weights;
  state.pieces = pieces;
  return true;
}

bool outweighs(const State& worse, const State& better) {
  for (uint8_t piece = 0; piece < better.pieces; ++piece) {
    if (better.weights[piece] > worse.weights[piece]) return false;
  }
  return true;
}

bool comes_before(const State& a, const State& b) {
  if (a.labels != b.labels) return a.labels < b.labels;
  if (a.cost != b.cost) return a.cost < b.cost;
  if (a.weights != b.weights) return a.weights < b.weights;
  return a.kept < b.kept;
}

// Leaves out states that another one is at least as good as. Sorted, so that those with equal labels are neighbours.
void leave_out_dominated(std::vector<State>& states) {
  std::sort(states.begin(), states.end(), comes_before);
  size_t end = 0;
  size_t group = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    if (end == group || states[group].labels != states[i].labels) group = end;
    bool dominated = false;
    for (size_t j = end; j-- > group && !dominated;) {
      dominated = outweighs(states[i], states[j]);
      if (states[i].pieces <= 1) break;  // their only weight falls as the cost rises
    }
    if (!dominated) states[end++] = states[i];
  }
  states.resize(end);
}

int32_t root_of(std::vector<int32_t>& parents, int32_t vertex) {
  while (parents[static_cast<size_t>(vertex)] != vertex) {
    int32_t& parent = parents[static_cast<size_t>(vertex)];
    parent = parents[static_cast<size_t>(parent)];
    vertex = parent;
  }
  return vertex;
}

}  // namespace

CutSolver::CutSolver(const CutGraph& graph) : graph_(graph), places_(graph.vertices.size()) {
  const auto count = static_cast<int32_t>(graph.vertices.size());
  std::vector<int32_t> last(graph.vertices.size(), -1);
  for (int32_t v = 0; v < count; ++v) {
    for (const int32_t u : graph.before[static_cast<size_t>(v)]) last[static_cast<size_t>(u)] = v;
  }
  std::vector<int32_t> open;
  for (int32_t v = 0; v < count; ++v) {
    const CutVertex& vertex = graph.vertices[static_cast<size_t>(v)];
    Place& place = places_[static_cast<size_t>(v)];
    place.may_drop = vertex.may_drop && !(vertex.may_keep && vertex.keep == 0);
    if (place.may_drop && last[static_cast<size_t>(v)] >= 0) {
      open.push_back(v);
      if (open.size() <= kSlots) {
        std::array<bool, kSlots> used{};
        for (const int32_t u : open) {
          if (u != v) used[static_cast<size_t>(places_[static_cast<size_t>(u)].slot)] = true;
        }
        place.slot = static_cast<int32_t>(std::find(used.begin(), used.end(), false) - used.begin());
      } else {
        // Too wide: the one with neighbours furthest ahead is kept. One that must be dropped counts for the last
        // resort.
        const auto reach = [&](int32_t u) {
          return graph.vertices[static_cast<size_t>(u)].may_keep ? last[static_cast<size_t>(u)] : -1;
        };
        const auto widest =
            std::max_element(open.begin(), open.end(), [&](int32_t a, int32_t b) { return reach(a) < reach(b); });
        Place& given_up = places_[static_cast<size_t>(*widest)];
        place.slot = given_up.slot;
        given_up.slot = -1;
        given_up.may_drop = false;
        open.erase(widest);
        restricted_ = true;
      }
    }
    std::erase_if(open, [&](int32_t u) { return last[static_cast<size_t>(u)] <= v; });
  }
  // Slots of vertices that turned out to be always kept are simply not used.
  std::vector<int32_t> active;
  for (int32_t v = 0; v < count; ++v) {
    Place& place = places_[static_cast<size_t>(v)];
    for (const int32_t u : graph.before[static_cast<size_t>(v)]) {
      if (places_[static_cast<size_t>(u)].slot >= 0) place.neighbours.push_back(places_[static_cast<size_t>(u)].slot);
    }
    if (place.slot >= 0) active.push_back(v);
    std::erase_if(active, [&](int32_t u) { return last[static_cast<size_t>(u)] <= v; });
    for (const int32_t u : active) place.active.push_back(places_[static_cast<size_t>(u)].slot);
    std::sort(place.active.begin(), place.active.end());
  }
}

size_t CutSolver::width() const {
  size_t most = 0;
  for (const Place& place : places_) most = std::max(most, place.active.size());
  return most;
}

// For each vertex, what it and the ones after it cost at least: the cheapest vertex of each of some disjoint connected
// sets that weigh more than they may.
std::vector<int64_t> CutSolver::least_to_come(const std::vector<int64_t>& bounds) const {
  const auto count = static_cast<int32_t>(graph_.vertices.size());
  std::vector<int64_t> least(graph_.vertices.size() + 1, 0);
  std::vector<std::vector<int32_t>> after(graph_.vertices.size());
  for (int32_t v = 0; v < count; ++v) {
    for (const int32_t u : graph_.before[static_cast<size_t>(v)]) after[static_cast<size_t>(u)].push_back(v);
  }
  std::vector<int32_t> parents(graph_.vertices.size());
  std::iota(parents.begin(), parents.end(), 0);
  std::vector<int64_t> weights(graph_.vertices.size());
  std::vector<int64_t> cheapest(graph_.vertices.size());
  int32_t end = count;  // vertices from here on are counted already
  for (int32_t v = count; v-- > 0;) {
    const auto at = static_cast<size_t>(v);
    const CutVertex& vertex = graph_.vertices[at];
    least[at] = least[at + 1] + (vertex.may_keep && vertex.may_drop ? std::min(vertex.keep, vertex.drop)
                                 : vertex.may_keep                  ? vertex.keep
                                                                    : vertex.drop);
    // Keeping costs `keep`, of which the line above has counted what cannot be avoided.
    cheapest[at] =
        vertex.may_keep ? vertex.keep - std::min(vertex.keep, vertex.may_drop ? vertex.drop : vertex.keep) : kNoBound;
    weights[at] = vertex.may_drop ? vertex.weight : 0;
    if (!vertex.may_drop) continue;
    for (const int32_t u : after[at]) {
      if (u >= end || !graph_.vertices[static_cast<size_t>(u)].may_drop) continue;
      const int32_t a = root_of(parents, v);
      const int32_t b = root_of(parents, u);
      if (a == b) continue;
      parents[static_cast<size_t>(b)] = a;
      weights[static_cast<size_t>(a)] += weights[static_cast<size_t>(b)];
      cheapest[static_cast<size_t>(a)] = std::min(cheapest[static_cast<size_t>(a)], cheapest[static_cast<size_t>(b)]);
    }
    // The loosest bound of the set is that of its first vertex.
    const auto root = static_cast<size_t>(root_of(parents, v));
    if (weights[root] > bounds[at]) {
      least[at] = std::min(kNoBound, least[at] + cheapest[root]);
      end = v;
    }
  }
  return least;
}

Cut CutSolver::solve(const std::vector<int64_t>& bounds, int64_t limit, size_t states, double price) const {
  const std::vector<int64_t> least = least_to_come(bounds);
  Cut result;
  result.lower_bound = limit;
  if (restricted_) result.lower_bound = std::min(limit, least[0]);
  std::vector<Trace> traces;
  std::vector<State> layer(1);
  std::vector<State> next;
  const auto forget = [&](const State& state, size_t from) {
    result.lower_bound = std::min(result.lower_bound, state.cost + least[from]);
  };
  for (size_t v = 0; v < places_.size(); ++v) {
    const CutVertex& vertex = graph_.vertices[v];
    const Place& place = places_[v];
    next.clear();
    const auto add = [&](State&& state, const std::array<uint32_t, 16>& merged,
                         const std::array<int64_t, 16>& weights) {
      ++result.steps;
      if (state.cost + least[v + 1] >= limit) return;
      if (renumber(state, merged, weights, place.active)) {
        next.push_back(state);
      } else {
        forget(state, v + 1);
      }
    };
    for (const State& state : layer) {
      std::array<uint32_t, 16> same{};
      std::array<int64_t, 16> weights{};
      for (uint32_t label = 1; label <= state.pieces; ++label) {
        same[label] = label;
        weights[label] = state.weights[label - 1];
      }
      if (vertex.may_keep) {
        State kept = state;
        kept.kept = 1;
        kept.cost += vertex.keep;
        if (place.slot >= 0) set_label(kept, place.slot, 0);
        add(std::move(kept), same, weights);
      }
      if (!place.may_drop) continue;
      const uint32_t own = state.pieces + 1u;
      int64_t weight = vertex.weight;
      std::array<uint32_t, 16> merged = same;
      for (const int32_t slot : place.neighbours) {
        const uint32_t label = label_of(state, slot);
        if (label == 0 || merged[label] == own) continue;
        merged[label] = own;
        weight += weights[label];
      }
      if (weight > bounds[v]) continue;
      merged[own] = own;
      weights[own] = weight;
      State dropped = state;
      dropped.kept = 0;
      dropped.cost += vertex.drop;
      if (place.slot >= 0) set_label(dropped, place.slot, own);
      add(std::move(dropped), merged, weights);
    }
    leave_out_dominated(next);
    if (next.size() > states) {
      const auto worth = [&](const State& state) {
        int64_t open = 0;
        for (uint8_t piece = 0; piece < state.pieces; ++piece) open += state.weights[piece];
        return static_cast<double>(state.cost) + price * static_cast<double>(open);
      };
      const auto better = [&](const State& a, const State& b) {
        const double x = worth(a);
        const double y = worth(b);
        return x != y ? x < y : comes_before(a, b);
      };
      std::nth_element(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(states), next.end(), better);
      for (size_t i = states; i < next.size(); ++i) forget(next[i], v + 1);
      next.resize(states);
    }
    if (next.empty()) return result;
    for (State& state : next) {
      traces.push_back({state.trace, state.kept});
      state.trace = static_cast<int32_t>(traces.size() - 1);
    }
    layer.swap(next);
  }
  const auto best =
      std::min_element(layer.begin(), layer.end(), [](const State& a, const State& b) { return a.cost < b.cost; });
  result.found = true;
  result.cost = best->cost;
  result.lower_bound = std::min(result.lower_bound, best->cost);
  result.kept.resize(places_.size());
  int32_t trace = best->trace;
  for (size_t v = places_.size(); v-- > 0;) {
    result.kept[v] = traces[static_cast<size_t>(trace)].kept;
    trace = traces[static_cast<size_t>(trace)].before;
  }
  return result;
}

}  // namespace actcore
