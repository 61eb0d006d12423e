#include "solvers/checkpoint_pool.h"

#include <algorithm>
#include <utility>

#include "solvers/index.h"

namespace actcore {

PlanPool::PlanPool(const TrainingStep& of_step, int64_t max_steps)
    : step(of_step),
      facts(of_step),
      simulator(facts),
      left(max_steps),
      visit_cost(static_cast<int64_t>(of_step.ops() + of_step.values() + of_step.events())),
      ranks_(of_step.values()) {
  find_choices();
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

Usage PlanPool::run(const std::vector<uint8_t>& kept) {
  for (size_t value = 0; value < kept.size(); ++value) ranks_[value] = kept[value] ? 0 : 1;
  return simulator.run(ranks_);
}

Usage PlanPool::measure(const std::vector<uint8_t>& kept) {
  left -= visit_cost;
  steps += visit_cost;
  return run(kept);
}

// Enters a plan in the front, unless another one is at least as good.
void PlanPool::enter(CheckpointPlan plan) {
  const Usage usage = plan.usage;
  const auto place = std::upper_bound(front.begin(), front.end(), usage.peak,
                                      [](int64_t peak, const CheckpointPlan& plan) { return peak < plan.usage.peak; });
  if (place != front.begin() && std::prev(place)->usage.seconds <= usage.seconds) return;
  const auto beaten = [&](const CheckpointPlan& other) {
    return other.usage.peak >= usage.peak && other.usage.seconds >= usage.seconds;
  };
  std::erase_if(front, beaten);
  const auto after = std::upper_bound(front.begin(), front.end(), usage.peak,
                                      [](int64_t peak, const CheckpointPlan& plan) { return peak < plan.usage.peak; });
  front.insert(after, std::move(plan));
}

Usage PlanPool::try_plan(const std::vector<uint8_t>& kept) {
  const Usage usage = measure(kept);
  enter({kept, {}, usage});
  return usage;
}

void PlanPool::try_all() {
  std::vector<uint8_t> kept(step.values(), 1);
  for (uint32_t set = 0; set < uint32_t{1} << choices.size(); ++set) {
    for (size_t i = 0; i < choices.size(); ++i) kept[at(choices[i])] = !(set >> i & 1u);
    try_plan(kept);
  }
}

const CheckpointPlan* PlanPool::best_within(int64_t budget) const {
  const auto after =
      std::upper_bound(front.begin(), front.end(), budget,
                       [](int64_t bytes, const CheckpointPlan& plan) { return bytes < plan.usage.peak; });
  return after == front.begin() ? nullptr : &*std::prev(after);
}

bool PlanPool::keeps_all(int32_t op, const std::vector<uint8_t>& kept) const {
  return std::all_of(chosen[at(op)].begin(), chosen[at(op)].end(), [&](int32_t v) { return kept[at(v)] != 0; });
}

void PlanPool::set(int32_t op, bool keep, std::vector<uint8_t>& kept) const {
  for (const int32_t value : chosen[at(op)]) kept[at(value)] = keep;
}

double PlanPool::seconds_a_byte(int32_t op) const {
  return step.seconds[at(op)] / static_cast<double>(chosen_bytes[at(op)] + 1);
}

// What nothing makes again counts as kept.
void PlanPool::tidy(CheckpointPlan& plan) {
  if (!plan.held.empty()) return;
  run(plan.kept);
  for (size_t value = 0; value < step.values(); ++value) {
    plan.kept[value] = simulator.keeps(value) || simulator.outer()[at(facts.producers()[value])] < 0;
  }
}

}  // namespace actcore
