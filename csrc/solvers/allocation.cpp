#include "solvers/allocation.h"

#include <algorithm>
#include <numeric>

#include "solvers/allocation_core.h"
#include "solvers/allocation_relaxation.h"

namespace actcore {

namespace {

// The first search remembers so many partial solutions, each further one eight times as many: what a narrow search finds
// makes the core of the next one smaller.
constexpr int64_t kFirstWidth = 64;
constexpr int64_t kWiden = 8;

// What of the budget can be used at all, when bytes come in steps of a common divisor.
int64_t usable(const std::vector<Items>& tensors, int64_t budget) {
  int64_t least = 0;
  int64_t divisor = 0;
  for (const Items& items : tensors) {
    least += items.front().nbytes;
    for (const Item& item : items) divisor = std::gcd(divisor, item.nbytes - items.front().nbytes);
  }
  return divisor == 0 ? budget : least + (budget - least) / divisor * divisor;
}

int64_t bytes_of(const std::vector<Items>& tensors, const Positions& positions) {
  int64_t nbytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) nbytes += tensors[i][positions[i]].nbytes;
  return nbytes;
}

Solution solution(const std::vector<Items>& tensors, Positions positions) {
  double cost = 0;
  for (size_t i = 0; i < tensors.size(); ++i) cost += tensors[i][positions[i]].cost;
  return {std::move(positions), cost};
}

}  // namespace

Allocation allocate(const std::vector<std::vector<Choice>>& rows, int64_t budget, int64_t max_steps) {
  std::vector<Items> tensors;
  for (const std::vector<Choice>& row : rows) tensors.push_back(undominated(row));
  budget = usable(tensors, budget);
  const Relaxation relaxation = relax(tensors, budget);

  Positions greedy = relaxation.base;
  spend(tensors, relaxation, relaxation.slack, greedy);
  Solution best = solution(tensors, std::move(greedy));

  Allocation result{{}, 0.0, relaxation.price == 0 || relaxation.slack == 0, 0};
  int64_t width = 0;
  while (!result.optimal) {
    const double limit = best.cost * (1 - kOptimality);
    const Core core = make_core(tensors, relaxation, limit);
    result.lower_bound = std::max(result.lower_bound, core.bound);
    if (core.tensors.empty()) {
      result.optimal = true;
      break;
    }
    const int64_t affordable = (max_steps - result.steps) / core.choices;
    const int64_t wider = std::min(width == 0 ? kFirstWidth : width * kWiden, affordable);
    if (wider <= width) break;
    width = wider;
    const Search found = search(core, relaxation, static_cast<size_t>(width), best);
    result.steps += found.steps;
    const double proven = std::min(found.forgotten, best.cost * (1 - kOptimality));
    result.lower_bound = std::max(result.lower_bound, proven);
    result.optimal = found.forgotten >= best.cost * (1 - kOptimality);
  }
  spend(tensors, relaxation, budget - bytes_of(tensors, best.positions), best.positions);
  for (size_t i = 0; i < tensors.size(); ++i) result.choices.push_back(tensors[i][best.positions[i]].choice);
  return result;
}

}  // namespace actcore
