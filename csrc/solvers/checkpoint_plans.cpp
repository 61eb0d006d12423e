#include "solvers/checkpoint_plans.h"

#include <utility>

#include "solvers/checkpoint_moves.h"
#include "solvers/checkpoint_nested.h"
#include "solvers/checkpoint_pool.h"
#include "solvers/checkpoint_row.h"

namespace actcore {

namespace {

constexpr int64_t kBudgets = 20;
constexpr int64_t kNestedShare = 4;  // one part in so many of the steps
constexpr size_t kMostChoices = 19;  // of which all sets may be tried

std::vector<int64_t> budgets_between(int64_t least, int64_t most) {
  std::vector<int64_t> budgets;
  for (int64_t i = 0; i < kBudgets; ++i) {
    // Closer together where little is left.
    const double share = static_cast<double>(i) / static_cast<double>(kBudgets);
    budgets.push_back(least + static_cast<int64_t>(static_cast<double>(most - least) * share * (0.5 + 0.5 * share)));
  }
  return budgets;
}

void search(PlanPool& pool) {
  RowCuts row(pool);
  LocalSearch moves(pool);
  const int64_t nested = pool.left / kNestedShare;
  pool.left -= nested;
  const int64_t total = pool.left;
  moves.drop_by_worth(total / 12);
  row.cut_for_bounds(total / 4);
  row.cut_below(total / 12);
  moves.lower_peak(total / 8);
  const auto budgets = budgets_between(pool.front.front().usage.peak, pool.front.back().usage.peak);
  row.cut_for_budgets(budgets, total / 6);
  moves.lower_peak(total / 16);
  int64_t rounds = kBudgets;
  for (const int64_t budget : budgets) moves.improve(budget, pool.left / rounds--);
  moves.change_at_random();
  pool.left += nested;
  NestedSearch(pool).run(row.found(), nested);
}

}  // namespace

Plans find_plans(const TrainingStep& step, int64_t max_steps) {
  PlanPool pool(step, max_steps);
  pool.try_plan(std::vector<uint8_t>(step.values(), 1));
  Plans plans;
  plans.exact = pool.choices.empty();
  if (!plans.exact && pool.choices.size() <= kMostChoices &&
      (int64_t{1} << pool.choices.size()) * pool.visit_cost <= pool.left) {
    pool.try_all();
    plans.exact = true;
  }
  if (!plans.exact) search(pool);
  for (CheckpointPlan& plan : pool.front) pool.tidy(plan);
  plans.front = std::move(pool.front);
  plans.steps = pool.steps;
  return plans;
}

}  // namespace actcore
