#include "solvers/checkpoint_form_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "solvers/index.h"

namespace actcore {

namespace {

constexpr size_t kBases = 24;
constexpr int32_t kPrices = 13;   // of a sweep: powers of 4, around the usual price
constexpr int32_t kHalvings = 6;  // of the price, at a budget
constexpr size_t kBasesABudget = 3;
constexpr int64_t kBudgets = 20;

double price_at(double usual, int32_t i) { return i == 0 ? 0.0 : usual * std::pow(4.0, i - kPrices / 2); }

}  // namespace

void FormSearch::add(const std::vector<uint8_t>& ranks) {
  for (const Base& base : bases_) {
    if (base.ranks == ranks) return;
  }
  bases_.push_back({ranks, {}});
}

// Plans of the front, about as far from each other in bytes.
void FormSearch::collect(size_t most) {
  const size_t count = pool_.front.size();
  const size_t taken = std::min(most, count);
  for (size_t i = 0; i < taken; ++i) add(pool_.front[taken < 2 ? 0 : i * (count - 1) / (taken - 1)].chosen.ranks);
}

void FormSearch::sweep(Base& base, int64_t stop) {
  fit_.prepare(base.ranks);
  for (int32_t i = kPrices; i-- > 0 && pool_.left > stop;) {
    const double price = price_at(fit_.usual_price(), i);
    const Assignment plan = fit_.fit(price);
    base.points.push_back({price, pool_.try_plan(plan)});
  }
}

// What is recomputed, at what keeping costs in the forms that suit a price.
void FormSearch::cut(int64_t steps) {
  const int64_t stop = pool_.left - steps;
  const std::vector<uint8_t> all(pool_.step.values(), 0);
  for (int32_t i = 0; i < kPrices; i += 2) {
    if (pool_.left <= stop) break;
    const double price = price_at(fit_.usual_price(), i);
    fit_.prepare(all);
    pool_.preferred = fit_.fit(price).forms;
    const auto cuts = row_.cut_at(price, fit_.costs(price), pool_.left - (pool_.left - stop) / 4);
    for (const Assignment& plan : cuts) {
      if (pool_.left <= stop) break;
      fit_.prepare(plan.ranks);
      const Usage usage = pool_.try_plan(fit_.fit(price));
      if (bases_.size() < 3 * kBases && !pool_.front.empty() && pool_.best_within(usage.peak) != nullptr &&
          pool_.best_within(usage.peak)->usage.seconds == usage.seconds) {
        add(plan.ranks);
      }
    }
  }
  pool_.preferred.clear();
}

// The price at which the plan of a base just fits the budget, for the bases that come closest to it.
void FormSearch::approach(int64_t budget, int64_t stop) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < bases_.size(); ++i) {
    for (const Base::Point& point : bases_[i].points) {
      if (point.usage.peak > budget) continue;
      order.emplace_back(point.usage.seconds, i);
      break;
    }
  }
  std::stable_sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size() && i < kBasesABudget && pool_.left > stop; ++i) {
    Base& base = bases_[order[i].second];
    auto low = std::find_if(base.points.begin(), base.points.end(),
                            [&](const Base::Point& point) { return point.usage.peak <= budget; });
    if (low == base.points.begin()) continue;
    fit_.prepare(base.ranks);
    for (int32_t j = 0; j < kHalvings && pool_.left > stop; ++j) {
      const double above = std::prev(low)->price;
      const double price = low->price > 0 ? std::sqrt(above) * std::sqrt(low->price) : above / 16;
      const Usage usage = pool_.try_plan(fit_.fit(price));
      low = base.points.insert(low, {price, usage});
      if (usage.peak > budget) ++low;
    }
  }
}

// Other values are kept, in the forms that suit the best plan's price.
void FormSearch::change_ranks(int64_t budget, int64_t steps) {
  const CheckpointPlan* known = pool_.best_within(budget);
  if (known == nullptr || pool_.choices.empty()) return;
  const Assignment plan = known->chosen;
  pool_.preferred = plan.forms;
  pool_.preferred.resize(pool_.step.values(), -1);
  // What the plan recomputes has no form to be kept in: one that costs as little as others do.
  double price = 0;
  fit_.prepare(plan.ranks);
  for (int32_t i = kPrices; i-- > 0;) {
    price = price_at(fit_.usual_price(), i);
    const Assignment other = fit_.fit(price);
    if (pool_.measure(other).peak <= budget) break;
  }
  fit_.prepare(std::vector<uint8_t>(pool_.step.values(), 0));
  const Assignment all = fit_.fit(price);
  for (size_t value = 0; value < pool_.step.values(); ++value) {
    if (plan.ranks[value] > 0) pool_.preferred[value] = all.forms[value];
  }
  moves_.improve(budget, steps);
  pool_.preferred.clear();
}

// Forms that take fewer seconds, as many at once as the budget and the variance allow.
void FormSearch::relax(int64_t budget, int64_t stop) {
  const CheckpointPlan* known = pool_.best_within(budget);
  if (known == nullptr || known->chosen.forms.empty()) return;
  Assignment plan = known->chosen;
  Usage now = known->usage;
  fit_.prepare(plan.ranks, true);
  struct Change {
    double worth;
    int32_t value;
    int8_t form;
  };
  std::vector<Change> changes;
  for (const FitItem& item : fit_.items()) {
    const auto own = std::find_if(item.options.begin(), item.options.end(),
                                  [&](const FitOption& option) { return option.form == plan.forms[at(item.value)]; });
    if (own == item.options.end()) continue;
    for (const FitOption& option : item.options) {
      if (option.seconds >= own->seconds) continue;
      const double bytes = std::max(0.0, option.bytes - own->bytes) / static_cast<double>(budget + 1);
      const double noise = std::max(0.0, option.variance - own->variance) / (pool_.variance + 1e-300);
      changes.push_back({(own->seconds - option.seconds) / (bytes + noise + 1e-12), item.value, option.form});
    }
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.worth > b.worth; });
  size_t count = changes.size();
  size_t next = 0;
  while (next < changes.size() && pool_.left > stop) {
    Assignment other = plan;
    const size_t end = std::min(changes.size(), next + count);
    for (size_t i = next; i < end; ++i) other.forms[at(changes[i].value)] = changes[i].form;
    const Usage usage = pool_.try_plan(other);
    if (usage.peak <= budget && usage.seconds < now.seconds) {
      plan = std::move(other);
      now = usage;
      next = end;
      count *= 2;
    } else if (count > 1) {
      count = (end - next + 1) / 2;
    } else {
      ++next;
    }
  }
}

bool FormSearch::change(int32_t value, size_t option, Assignment& plan) const {
  const PlanPool::Option& to = pool_.options_of[at(value)][option];
  if (plan.ranks[at(value)] == to.rank && plan.forms[at(value)] == to.form) return false;
  plan.ranks[at(value)] = to.rank;
  plan.forms[at(value)] = to.form;
  return true;
}

// Each plan of the front with each single change, until none is new.
void FormSearch::change_one(int64_t stop) {
  std::vector<Assignment> known;
  for (size_t i = 0; i < pool_.front.size() && pool_.left > stop;) {
    Assignment plan = pool_.front[i].chosen;
    plan.forms.resize(pool_.step.values(), -1);
    const auto same = [&](const Assignment& other) { return other.ranks == plan.ranks && other.forms == plan.forms; };
    if (std::any_of(known.begin(), known.end(), same)) {
      ++i;
      continue;
    }
    known.push_back(plan);
    for (const int32_t value : pool_.changing) {
      for (size_t option = 0; option < pool_.options_of[at(value)].size() && pool_.left > stop; ++option) {
        Assignment other = plan;
        if (change(value, option, other)) pool_.try_plan(other);
      }
    }
    i = 0;
  }
}

// Known plans with a few changes, the same ones each time.
void FormSearch::change_at_random(int64_t stop) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  const auto draw = [&](size_t count) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<size_t>(state % count);
  };
  while (pool_.left > stop && !pool_.changing.empty()) {
    Assignment plan = pool_.front[draw(pool_.front.size())].chosen;
    plan.forms.resize(pool_.step.values(), -1);
    for (size_t changes = 2 + draw(3); changes-- > 0;) {
      const int32_t value = pool_.changing[draw(pool_.changing.size())];
      change(value, draw(pool_.options_of[at(value)].size()), plan);
    }
    pool_.try_plan(plan);
  }
}

void FormSearch::run(int64_t steps) {
  const int64_t end = pool_.left - steps;
  const auto until = [&](double share) { return end + static_cast<int64_t>((1 - share) * static_cast<double>(steps)); };
  collect(kBases);
  cut(static_cast<int64_t>(0.2 * static_cast<double>(steps)));
  for (Base& base : bases_) sweep(base, until(0.4));
  const auto budgets = pool_.budgets(kBudgets);
  for (const int64_t budget : budgets) approach(budget, until(0.55));
  for (size_t i = 0; i < budgets.size(); ++i) {
    relax(budgets[i], until(0.7));
    const int64_t left = pool_.left - until(0.85);
    if (left > 0) change_ranks(budgets[i], left / static_cast<int64_t>(budgets.size() - i));
  }
  for (size_t i = 0; i < budgets.size(); ++i) relax(budgets[i], until(0.9));
  change_one(until(0.96));
  change_at_random(end);
}

}  // namespace actcore
