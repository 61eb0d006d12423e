#include "solvers/checkpoint_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "solvers/index.h"

namespace actcore {

PlanPool::PlanPool(const TrainingStep& of_step, int64_t max_steps, double most_variance)
    : step(of_step),
      facts(of_step),
      simulator(facts),
      left(max_steps),
      visit_cost(static_cast<int64_t>(of_step.ops() + of_step.values() + of_step.events())),
      variance(most_variance) {
  find_choices();
  find_forms();
  for (const int32_t op : choosing) total_seconds += step.seconds[at(op)];
}

// The values that there is a choice about, and that something could need again.
void PlanPool::find_choices() {
  useful = facts.wanted();
  for (size_t op = step.ops(); op-- > 0;) {
    const bool leads = std::any_of(step.makes[op].begin(), step.makes[op].end(),
                                   [&](int32_t value) { return useful[at(value)] != 0; });
    if (!leads) continue;
    for (const int32_t value : step.reads[op]) useful[at(value)] = 1;
  }
  for (size_t value = 0; value < step.values(); ++value) {
    if (useful[value] && facts.optional()[value]) choices.push_back(static_cast<int32_t>(value));
  }
  chosen.resize(step.ops());
  chosen_bytes.resize(step.ops(), 0);
  wanted_bytes.resize(step.ops(), 0);
  for (const int32_t value : choices) {
    const size_t op = at(facts.producers()[at(value)]);
    if (chosen[op].empty()) choosing.push_back(static_cast<int32_t>(op));
    chosen[op].push_back(value);
    chosen_bytes[op] += step.nbytes[at(value)];
    if (facts.wanted()[at(value)]) wanted_bytes[op] += step.nbytes[at(value)];
  }
  before.resize(step.ops());
  behind.resize(step.ops());
  for (const int32_t op : choosing) {
    for (const int32_t value : step.reads[at(op)]) {
      const int32_t producer = facts.producers()[at(value)];
      if (chosen[at(producer)].empty()) continue;
      before[at(op)].push_back(producer);
      behind[at(producer)].push_back(op);
    }
  }
}

// Where no variance is allowed, no value that backward could read or that others are made of may have noise.
void PlanPool::find_forms() {
  forms.resize(step.values());
  for (size_t value = 0; value < step.values(); ++value) {
    if (!useful[value]) continue;
    for (size_t form = 0; form < step.forms[value].size(); ++form) {
      if (variance == 0 && step.forms[value][form].noise > 0) continue;
      forms[value].push_back(static_cast<int8_t>(form));
      has_forms = true;
    }
  }
  options_of.resize(step.values());
  for (size_t value = 0; value < step.values(); ++value) {
    auto& options = options_of[value];
    options.push_back({0, -1});
    for (const int8_t form : forms[value]) options.push_back({0, form});
    if (useful[value] && facts.optional()[value]) {
      options.push_back({1, -1});
      for (const int8_t form : forms[value]) {
        if (facts.wanted()[value]) options.push_back({1, form});
      }
    }
    if (options.size() > 1) changing.push_back(static_cast<int32_t>(value));
  }
}

Usage PlanPool::measure(const Assignment& plan) {
  left -= visit_cost;
  steps += visit_cost;
  return simulator.run(plan.ranks, plan.forms);
}

bool PlanPool::is_beaten(const Usage& usage) const {
  const CheckpointPlan* known = best_within(usage.peak);
  return known != nullptr && known->usage.seconds <= usage.seconds;
}

// Enters a plan in the front, unless another one is at least as good.
void PlanPool::enter(CheckpointPlan plan) {
  const Usage usage = plan.usage;
  if (is_beaten(usage)) return;
  const auto beaten = [&](const CheckpointPlan& other) {
    return other.usage.peak >= usage.peak && other.usage.seconds >= usage.seconds;
  };
  std::erase_if(front, beaten);
  const auto after = std::upper_bound(front.begin(), front.end(), usage.peak,
                                      [](int64_t peak, const CheckpointPlan& plan) { return peak < plan.usage.peak; });
  front.insert(after, std::move(plan));
}

Usage PlanPool::try_plan(const Assignment& plan) {
  Usage usage = measure(plan);
  if (usage.variance > variance) {
    usage.peak = std::numeric_limits<int64_t>::max() / 4;
    usage.seconds = std::numeric_limits<double>::infinity();
  } else if (!is_beaten(usage)) {
    enter({plan, usage});
  }
  return usage;
}

int64_t PlanPool::count_all(int64_t most) const {
  int64_t count = 1;
  for (const int32_t value : changing) {
    if (count >= most) break;
    count *= static_cast<int64_t>(options_of[at(value)].size());
  }
  return std::min(count, most);
}

void PlanPool::try_all() {
  Assignment plan = everything();
  if (has_forms) plan.forms.assign(step.values(), -1);
  std::vector<size_t> digits(changing.size(), 0);
  size_t place = 0;
  while (place < changing.size()) {
    try_plan(plan);
    for (place = 0; place < changing.size(); ++place) {
      const auto& options = options_of[at(changing[place])];
      digits[place] = (digits[place] + 1) % options.size();
      const Option& option = options[digits[place]];
      plan.ranks[at(changing[place])] = option.rank;
      if (has_forms) plan.forms[at(changing[place])] = option.form;
      if (digits[place] > 0) break;
    }
  }
}

const CheckpointPlan* PlanPool::best_within(int64_t budget) const {
  const auto after =
      std::upper_bound(front.begin(), front.end(), budget,
                       [](int64_t bytes, const CheckpointPlan& plan) { return bytes < plan.usage.peak; });
  return after == front.begin() ? nullptr : &*std::prev(after);
}

std::vector<int64_t> PlanPool::budgets(int64_t count) const {
  const int64_t least = front.front().usage.peak;
  const int64_t most = front.back().usage.peak;
  std::vector<int64_t> budgets;
  for (int64_t i = 0; i < count; ++i) {
    // Closer together where little is left.
    const double share = static_cast<double>(i) / static_cast<double>(count);
    budgets.push_back(least + static_cast<int64_t>(static_cast<double>(most - least) * share * (0.5 + 0.5 * share)));
  }
  return budgets;
}

bool PlanPool::keeps_all(int32_t op, const Assignment& plan) const {
  return std::all_of(chosen[at(op)].begin(), chosen[at(op)].end(), [&](int32_t v) { return plan.ranks[at(v)] == 0; });
}

void PlanPool::set(int32_t op, bool keep, Assignment& plan) const {
  for (const int32_t value : chosen[at(op)]) set_value(value, keep, plan);
}

void PlanPool::set_value(int32_t value, bool keep, Assignment& plan) const {
  plan.ranks[at(value)] = keep ? 0 : 1;
  if (plan.forms.empty() && preferred.empty()) return;
  plan.forms.resize(step.values(), -1);
  plan.forms[at(value)] =
      (keep || !facts.optional()[at(value)]) && !preferred.empty() ? preferred[at(value)] : int8_t{-1};
}

double PlanPool::seconds_a_byte(int32_t op) const {
  return step.seconds[at(op)] / static_cast<double>(chosen_bytes[at(op)] + 1);
}

void PlanPool::tidy(CheckpointPlan& plan) {
  simulator.run(plan.chosen.ranks, plan.chosen.forms);
  bool formed = false;
  for (size_t value = 0; value < step.values(); ++value) {
    const size_t op = at(facts.producers()[value]);
    const bool repeated = simulator.outer()[op] >= 0 || simulator.inner()[op] >= 0;
    plan.nested = plan.nested || simulator.inner()[op] >= 0;
    plan.chosen.ranks[value] = repeated ? simulator.rank(value) : uint8_t{0};
    if (plan.chosen.forms.empty()) continue;
    plan.chosen.forms[value] = simulator.form(value);
    formed = formed || plan.chosen.forms[value] >= 0;
  }
  if (!formed) plan.chosen.forms.clear();
}

}  // namespace actcore
