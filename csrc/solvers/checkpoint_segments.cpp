#include "solvers/checkpoint_segments.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "solvers/checkpoint_cut.h"

namespace actcore {

namespace {

constexpr size_t kFewStates = 24;
constexpr size_t kMostStates = 1024;
// So few vertices are open at once in chains, residual networks and dense blocks: the states of all of them fit.
constexpr size_t kNarrow = 4;
constexpr size_t kNarrowStates = 512;
// What weight in an open piece is taken to cost, relative to what the best answer costs for all weight.
constexpr double kPrices[] = {0.5, 0.25, 1.0, 2.0};

using Neighbours = std::vector<std::vector<int32_t>>;

Neighbours neighbours_of(size_t count, const std::vector<std::pair<int32_t, int32_t>>& edges) {
  Neighbours neighbours(count);
  for (const auto& [a, b] : edges) {
    if (a == b) continue;
    neighbours[static_cast<size_t>(a)].push_back(b);
    neighbours[static_cast<size_t>(b)].push_back(a);
  }
  for (auto& row : neighbours) {
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
  }
  return neighbours;
}

// The vertices in the order given, or each time the one that leaves the fewest with neighbours to come: whichever is
// narrower.
std::vector<int32_t> narrow_order(const Neighbours& neighbours, const std::vector<int64_t>& costs) {
  const size_t count = neighbours.size();
  const auto width = [&](const std::vector<int32_t>& order) {
    std::vector<size_t> left(count);
    std::vector<bool> placed(count, false);
    for (size_t v = 0; v < count; ++v) {
      for (const int32_t u : neighbours[v]) left[v] += costs[static_cast<size_t>(u)] > 0;
    }
    size_t open = 0;
    double sum = 0;
    for (const int32_t v : order) {
      const auto at = static_cast<size_t>(v);
      placed[at] = true;
      if (costs[at] > 0) {
        open += left[at] > 0;
        for (const int32_t u : neighbours[at]) {
          const auto other = static_cast<size_t>(u);
          open -= --left[other] == 0 && placed[other] && costs[other] > 0;
        }
      }
      sum += static_cast<double>(uint64_t{1} << std::min<size_t>(open, 60));
    }
    return sum;
  };
  std::vector<int32_t> given(count);
  std::iota(given.begin(), given.end(), 0);

  std::vector<int32_t> greedy;
  std::vector<bool> placed(count, false);
  std::vector<bool> reached(count, false);
  std::vector<int32_t> left(count);
  for (size_t v = 0; v < count; ++v) left[v] = static_cast<int32_t>(neighbours[v].size());
  std::vector<int32_t> border;
  size_t fresh = 0;
  while (greedy.size() < count) {
    std::erase_if(border, [&](int32_t v) { return placed[static_cast<size_t>(v)]; });
    if (border.empty()) {
      while (placed[fresh]) ++fresh;
      border.push_back(static_cast<int32_t>(fresh));
      reached[fresh] = true;
    }
    int32_t best = -1;
    int32_t least = 0;
    for (const int32_t v : border) {
      int32_t growth = left[static_cast<size_t>(v)] > 0;
      for (const int32_t u : neighbours[static_cast<size_t>(v)]) {
        growth -= placed[static_cast<size_t>(u)] && left[static_cast<size_t>(u)] == 1;
      }
      if (best < 0 || growth < least || (growth == least && v < best)) {
        best = v;
        least = growth;
      }
    }
    placed[static_cast<size_t>(best)] = true;
    greedy.push_back(best);
    for (const int32_t u : neighbours[static_cast<size_t>(best)]) {
      --left[static_cast<size_t>(u)];
      if (!reached[static_cast<size_t>(u)]) {
        reached[static_cast<size_t>(u)] = true;
        border.push_back(u);
      }
    }
  }
  return width(greedy) < width(given) ? greedy : given;
}

class Search {
 public:
  Search(const std::vector<int64_t>& costs, const std::vector<std::pair<int32_t, int32_t>>& edges, int64_t max_steps)
      : neighbours_(neighbours_of(costs.size(), edges)), order_(narrow_order(neighbours_, costs)), left_(max_steps) {
    // Sizes are multiples of something large: bounds in its terms are few.
    for (const int64_t cost : costs) unit_ = std::gcd(unit_, cost);
    unit_ = std::max<int64_t>(unit_, 1);
    std::vector<int32_t> position(costs.size());
    for (size_t i = 0; i < order_.size(); ++i) position[static_cast<size_t>(order_[i])] = static_cast<int32_t>(i);
    for (const int32_t v : order_) {
      const int64_t cost = costs[static_cast<size_t>(v)] / unit_;
      graph_.vertices.push_back({cost, 0, cost, true, cost > 0});
      std::vector<int32_t> before;
      for (const int32_t u : neighbours_[static_cast<size_t>(v)]) {
        if (cost > 0 && costs[static_cast<size_t>(u)] > 0 &&
            position[static_cast<size_t>(u)] < position[static_cast<size_t>(v)]) {
          before.push_back(position[static_cast<size_t>(u)]);
        }
      }
      graph_.before.push_back(std::move(before));
      total_ += cost;
    }
  }

  Segments run() {
    const CutSolver solver(graph_);
    best_.kept.assign(order_.size(), 1);
    best_.kept_sum = total_;
    // A rough answer first: what it costs is the limit for all others.
    if (left_ >= static_cast<int64_t>(order_.size())) {
      for (const double price : kPrices) {
        if (solver.width() <= kNarrow && price != kPrices[0]) break;
        const int64_t before = best();
        const double known = price_;
        price_ = price;
        for (int64_t bound = total_; bound > 0; bound -= std::max<int64_t>(1, bound / 4)) {
          solve(solver, bound, kFewStates, best());
        }
        if (best() == before) price_ = known;
      }
    }
    struct Interval {
      int64_t low, high, least;  // bounds in (low, high]; at least this much is kept
      int64_t bound() const { return least + low + 1; }
      bool operator<(const Interval& other) const {
        return bound() != other.bound() ? bound() > other.bound() : low > other.low;
      }
    };
    std::priority_queue<Interval> open;
    open.push({-1, best() - 1, 0});
    const int64_t share = left_ / 32;
    while (!open.empty() && open.top().bound() < best() && left_ > 0) {
      const Interval interval = open.top();
      open.pop();
      const int64_t middle = interval.low + (interval.high - interval.low + 1) / 2;
      const auto per_vertex = static_cast<size_t>(share / (2 * static_cast<int64_t>(order_.size()) + 1));
      const size_t states = solver.width() <= kNarrow ? kNarrowStates : std::clamp(per_vertex, kFewStates, kMostStates);
      const Cut cut = solve(solver, middle, states, best() - interval.low - 1);
      const int64_t least = std::max(interval.least, cut.lower_bound);
      // Where the cut is the cheapest there is, a bound that it keeps, too, but not with room to spare, gives nothing
      // new.
      int64_t high = middle;
      if (cut.found && cut.cost == cut.lower_bound) high = std::min(middle, largest_ - 1);
      if (middle == interval.high && high == middle && interval.low + 1 == middle) {
        // One bound, and nothing left to split.
        closed_ = std::min(closed_, least + middle);
        continue;
      }
      if (high > interval.low) open.push({interval.low, high, least});
      if (middle < interval.high) open.push({middle, interval.high, interval.least});
    }
    int64_t bound = std::min(best(), closed_);
    if (!open.empty()) bound = std::min(bound, open.top().bound());
    return finished(bound);
  }

 private:
  int64_t best() const { return best_.kept_sum + best_.largest; }

  Cut solve(const CutSolver& solver, int64_t bound, size_t states, int64_t limit) {
    const double price = price_ * static_cast<double>(best()) / static_cast<double>(std::max<int64_t>(total_, 1));
    Cut cut = solver.solve(std::vector<int64_t>(order_.size(), bound), limit, states, price);
    left_ -= cut.steps;
    best_.steps += cut.steps;
    if (cut.found) {
      largest_ = largest_piece(cut.kept);
      if (cut.cost + largest_ < best()) {
        best_.kept = cut.kept;
        best_.kept_sum = cut.cost;
        best_.largest = largest_;
      }
    }
    return cut;
  }

  int64_t largest_piece(const std::vector<uint8_t>& kept) const {
    std::vector<int32_t> parents(kept.size());
    std::iota(parents.begin(), parents.end(), 0);
    std::vector<int64_t> sums(kept.size(), 0);
    int64_t most = 0;
    for (size_t v = 0; v < kept.size(); ++v) {
      if (kept[v]) continue;
      sums[v] = graph_.vertices[v].weight;
      for (const int32_t u : graph_.before[v]) {
        if (kept[static_cast<size_t>(u)]) continue;
        int32_t root = u;
        while (parents[static_cast<size_t>(root)] != root) {
          int32_t& parent = parents[static_cast<size_t>(root)];
          parent = parents[static_cast<size_t>(parent)];
          root = parent;
        }
        if (static_cast<size_t>(root) == v) continue;
        parents[static_cast<size_t>(root)] = static_cast<int32_t>(v);
        sums[v] += sums[static_cast<size_t>(root)];
      }
      most = std::max(most, sums[v]);
    }
    return most;
  }

  Segments finished(int64_t bound) {
    Segments result;
    result.kept.resize(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) result.kept[static_cast<size_t>(order_[i])] = best_.kept[i];
    result.kept_sum = best_.kept_sum * unit_;
    result.largest = best_.largest * unit_;
    result.lower_bound = bound * unit_;
    result.steps = best_.steps;
    return result;
  }

  Neighbours neighbours_;
  std::vector<int32_t> order_;
  CutGraph graph_;
  int64_t unit_ = 0;
  int64_t total_ = 0;
  int64_t left_;
  int64_t largest_ = 0;
  double price_ = kPrices[0];
  int64_t closed_ = kNoBound;
  Segments best_;
};

}  // namespace

Segments find_segments(const std::vector<int64_t>& costs, const std::vector<std::pair<int32_t, int32_t>>& edges,
                       int64_t max_steps) {
  return Search(costs, edges, max_steps).run();
}

}  // namespace actcore
