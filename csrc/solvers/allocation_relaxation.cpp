#include "solvers/allocation_relaxation.h"

#include <algorithm>
#include <numeric>

namespace actcore {

Items undominated(const std::vector<Choice>& row) {
  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return row[a].nbytes != row[b].nbytes ? row[a].nbytes < row[b].nbytes : row[a].cost < row[b].cost;
  });
  Items items;
  for (const int32_t choice : order) {
    if (items.empty() || row[choice].cost < items.back().cost) {
      items.push_back({row[choice].nbytes, row[choice].cost, choice});
    }
  }
  return items;
}

namespace {

Upgrade upgrade(const Items& items, int32_t tensor, int32_t from, int32_t to) {
  const double saved = items[from].cost - items[to].cost;
  return {saved / static_cast<double>(items[to].nbytes - items[from].nbytes), tensor, from, to};
}

// The steps between neighbours on the lower hull: slopes descend strictly, as they were computed.
void append_hull(const Items& items, int32_t tensor, std::vector<Upgrade>& steps) {
  const size_t first = steps.size();
  for (int32_t next = 1; next < static_cast<int32_t>(items.size()); ++next) {
    Upgrade step = upgrade(items, tensor, next - 1, next);
    while (steps.size() > first && steps.back().slope <= step.slope) {
      step = upgrade(items, tensor, steps.back().from, next);
      steps.pop_back();
    }
    steps.push_back(step);
  }
}

int64_t extra_bytes(const Items& items, const Upgrade& step) { return items[step.to].nbytes - items[step.from].nbytes; }

}  // namespace

Relaxation relax(const std::vector<Items>& tensors, int64_t budget) {
  Relaxation result{Positions(tensors.size(), 0), budget, 0.0, {}};
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    result.slack -= tensors[tensor].front().nbytes;
    append_hull(tensors[tensor], static_cast<int32_t>(tensor), result.upgrades);
  }
  // Stable, so that of equal slopes those of the first tensor come first, on every platform.
  std::stable_sort(result.upgrades.begin(), result.upgrades.end(),
                   [](const Upgrade& a, const Upgrade& b) { return a.slope > b.slope; });
  for (const Upgrade& step : result.upgrades) {
    const int64_t bytes = extra_bytes(tensors[step.tensor], step);
    if (bytes > result.slack) {
      result.price = step.slope;
      break;
    }
    result.slack -= bytes;
    result.base[step.tensor] = step.to;
  }
  return result;
}

void spend(const std::vector<Items>& tensors, const Relaxation& relaxation, int64_t slack, Positions& positions) {
  for (const Upgrade& step : relaxation.upgrades) {
    const int64_t bytes = extra_bytes(tensors[step.tensor], step);
    if (positions[step.tensor] == step.from && bytes <= slack) {
      slack -= bytes;
      positions[step.tensor] = step.to;
    }
  }
  // Choices above the hull are none of the upgrades. One pass is enough: slack only shrinks.
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const Items& items = tensors[tensor];
    const int64_t reach = items[positions[tensor]].nbytes + slack;
    while (positions[tensor] + 1 < static_cast<int32_t>(items.size()) && items[positions[tensor] + 1].nbytes <= reach) {
      slack -= items[positions[tensor] + 1].nbytes - items[positions[tensor]].nbytes;
      ++positions[tensor];
    }
  }
}

}  // namespace actcore
