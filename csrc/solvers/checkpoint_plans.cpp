#include "solvers/checkpoint_plans.h"

#include <algorithm>
#include <utility>

#include "solvers/checkpoint_form_search.h"
#include "solvers/checkpoint_moves.h"
#include "solvers/checkpoint_nested.h"
#include "solvers/checkpoint_pool.h"
#include "solvers/checkpoint_row.h"

namespace actcore {

namespace {

constexpr int64_t kBudgets = 20;
constexpr int64_t kNestedShare = 4;      // one part in so many of the steps
constexpr int64_t kUnformedShare = 3;    // where values have forms: for plans in which all wait as they are
constexpr int64_t kMostPlans = 1 << 20;  // fewer may all be tried

// Plans in which all wait as they are.
void search_ranks(PlanPool& pool, RowCuts& row, LocalSearch& moves) {
  const int64_t nested = pool.left / kNestedShare;
  pool.left -= nested;
  const int64_t total = pool.left;
  moves.drop_by_worth(total / 12);
  row.cut_for_bounds(total / 4);
  row.cut_below(total / 12);
  moves.lower_peak(total / 8);
  const auto budgets = pool.budgets(kBudgets);
  row.cut_for_budgets(budgets, total / 6);
  moves.lower_peak(total / 16);
  int64_t rounds = kBudgets;
  for (const int64_t budget : budgets) moves.improve(budget, pool.left / rounds--);
  moves.change_at_random();
  pool.left += nested;
  NestedSearch(pool).run(row.found(), nested);
}

void search(PlanPool& pool) {
  RowCuts row(pool);
  LocalSearch moves(pool);
  if (!pool.choices.empty()) {
    const int64_t formed = pool.has_forms ? pool.left - pool.left / kUnformedShare : 0;
    pool.left -= formed;
    search_ranks(pool, row, moves);
    pool.left += formed;
  }
  if (pool.has_forms) FormSearch(pool, row, moves).run(pool.left);
}

}  // namespace

Plans find_plans(const TrainingStep& step, int64_t max_steps, double variance) {
  PlanPool pool(step, max_steps, variance);
  pool.try_plan(pool.everything());
  Plans plans;
  const int64_t all = pool.count_all(kMostPlans);
  plans.exact = all == 1;
  if (!plans.exact && all < kMostPlans && all * pool.visit_cost <= pool.left) {
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
