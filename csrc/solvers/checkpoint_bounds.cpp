#include <algorithm>
#include <numeric>

#include "solvers/checkpoint_plans.h"
#include "solvers/checkpoint_simulator.h"
#include "solvers/index.h"

namespace actcore {

namespace {

// At each event, the bytes that are alive where everything is kept, and those of them that another choice could save:
// of values that wait for backward and that the event itself does not use.
struct Savings {
  StepFacts facts;
  std::vector<int64_t> alive;
  std::vector<int64_t> waiting;

  explicit Savings(const TrainingStep& step) : facts(step), waiting(step.events() + 1, 0) {
    Simulator simulator(facts);
    simulator.run(std::vector<uint8_t>(step.values(), 0));
    alive = simulator.bytes();
    for (size_t value = 0; value < step.values(); ++value) {
      if (!waits(value)) continue;
      waiting[at(facts.forward_ends()[value]) + 1] += step.nbytes[value];
      waiting[at(facts.last_reads()[value])] -= step.nbytes[value];
    }
    std::partial_sum(waiting.begin(), waiting.end(), waiting.begin());
    for (size_t i = 0; i < step.backward.size(); ++i) {
      const auto event = static_cast<int32_t>(step.ops() + i);
      for (const int32_t value : step.backward[i]) {
        if (waits(at(value)) && facts.forward_ends()[at(value)] < event &&
            event < facts.last_reads()[at(value)]) {
          waiting[at(event)] -= step.nbytes[at(value)];
        }
      }
    }
  }

  bool waits(size_t value) const {
    return facts.optional()[value] && facts.forward_ends()[value] < facts.last_reads()[value];
  }
};

}  // namespace

int64_t least_peak_bound(const TrainingStep& step) {
  const Savings savings(step);
  int64_t bound = 0;
  for (size_t event = 0; event < step.events(); ++event) {
    bound = std::max(bound, savings.alive[event] - savings.waiting[event]);
  }
  return bound;
}

std::vector<double> least_seconds_bounds(const TrainingStep& step, const std::vector<int64_t>& budgets) {
  const Savings savings(step);
  std::vector<double> bounds(budgets.size(), 0.0);
  // Where the most must be saved, and around it, is where it costs most.
  std::vector<size_t> events(step.events());
  std::iota(events.begin(), events.end(), size_t{0});
  std::stable_sort(events.begin(), events.end(),
                   [&](size_t a, size_t b) { return savings.alive[a] > savings.alive[b]; });
  constexpr size_t kMostEvents = 64;
  const size_t stride = std::max<size_t>(1, events.size() / (2 * kMostEvents));
  std::vector<int64_t> saved(step.ops());
  std::vector<size_t> ops;
  for (size_t i = 0; i < events.size() && i < kMostEvents * stride; i += stride) {
    const size_t event = events[i];
    std::fill(saved.begin(), saved.end(), 0);
    for (size_t value = 0; value < step.values(); ++value) {
      if (!savings.waits(value)) continue;
      if (at(savings.facts.forward_ends()[value]) >= event || at(savings.facts.last_reads()[value]) <= event) {
        continue;
      }
      saved[at(savings.facts.producers()[value])] += step.nbytes[value];
    }
    if (event >= step.ops()) {
      for (const int32_t value : step.backward[event - step.ops()]) {
        if (savings.waits(at(value)) && at(savings.facts.forward_ends()[at(value)]) < event &&
            at(savings.facts.last_reads()[at(value)]) > event) {
          saved[at(savings.facts.producers()[at(value)])] -= step.nbytes[at(value)];
        }
      }
    }
    // An operator that is repeated once saves all of its values at best; the last one by a part: the linear relaxation.
    ops.clear();
    for (size_t op = 0; op < step.ops(); ++op) {
      if (saved[op] > 0) ops.push_back(op);
    }
    std::sort(ops.begin(), ops.end(), [&](size_t a, size_t b) {
      const double x = step.seconds[a] * static_cast<double>(saved[b]);
      const double y = step.seconds[b] * static_cast<double>(saved[a]);
      return x != y ? x < y : a < b;
    });
    for (size_t j = 0; j < budgets.size(); ++j) {
      int64_t excess = savings.alive[event] - budgets[j];
      double seconds = 0;
      for (size_t k = 0; k < ops.size() && excess > 0; ++k) {
        const int64_t part = std::min(excess, saved[ops[k]]);
        seconds += step.seconds[ops[k]] * (static_cast<double>(part) / static_cast<double>(saved[ops[k]]));
        excess -= part;
      }
      bounds[j] = std::max(bounds[j], seconds);
    }
  }
  return bounds;
}

}  // namespace actcore
