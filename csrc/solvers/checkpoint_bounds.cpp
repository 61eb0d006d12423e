#include <algorithm>
#include <numeric>

#include "solvers/checkpoint_plans.h"
#include "solvers/checkpoint_simulator.h"
#include "solvers/index.h"

namespace actcore {

namespace {

// At each event, the bytes that are alive where everything is kept as it is, and those of them that another choice could
// save: of values that wait for backward.
struct Savings {
  TrainingStep step;
  StepFacts facts;
  bool exact;  // only forms without noise count
  std::vector<int64_t> alive;

  Savings(const Savings&) = delete;
  Savings(const TrainingStep& of_step, double variance) : step(of_step), facts(step), exact(variance == 0) {
    step.formed.assign(step.values(), 0);
    Simulator simulator(facts);
    simulator.run(std::vector<uint8_t>(step.values(), 0));
    alive = simulator.bytes();
  }

  bool may_take(const Form& form) const { return !exact || form.noise == 0; }

  // Of values that the forward has had and backward has still to read.
  bool waits(size_t value, size_t event) const {
    return at(facts.forward_ends()[value]) < event && facts.last_reads()[value] >= static_cast<int32_t>(event);
  }

  // What a form saves while a value waits, and where backward reads it.
  int64_t by_form(size_t value, const Form& form, bool read) const {
    return step.nbytes[value] - form.held - (read ? form.restored : 0);
  }

  int64_t by_forms(size_t value, bool read) const {
    int64_t most = 0;
    for (const Form& form : step.forms[value]) {
      if (may_take(form)) most = std::max(most, by_form(value, form, read));
    }
    return most;
  }

  // What is recomputed is there as it is, or restored, where it is read.
  int64_t most(size_t value, bool read) const {
    return facts.optional()[value] && !read ? step.nbytes[value] : by_forms(value, read);
  }
};

// Bytes that may be saved, up to so many, at so many seconds each.
struct Source {
  double seconds;
  int64_t bytes;
};

bool is_cheaper(const Source& a, const Source& b) {
  const double x = a.seconds * static_cast<double>(b.bytes);
  const double y = b.seconds * static_cast<double>(a.bytes);
  return x < y;
}

// What an operator's values save at an event. Repeating it saves all that is not read at best; a form saves a part of
// its value. Both together save no more than there is: what is cheaper counts first.
void add_sources(const Savings& savings, size_t op, size_t event, const std::vector<uint8_t>& read,
                 std::vector<Source>& sources) {
  const TrainingStep& step = savings.step;
  Source repeated{step.seconds[op], 0};
  for (const int32_t value : step.makes[op]) {
    if (savings.facts.optional()[at(value)] && savings.waits(at(value), event) && !read[at(value)]) {
      repeated.bytes += step.nbytes[at(value)];
    }
  }
  const Source whole = repeated;
  for (const int32_t value : step.makes[op]) {
    if (!savings.waits(at(value), event)) continue;
    Source best{0, 0};
    int64_t most = 0;
    for (const Form& form : step.forms[at(value)]) {
      const int64_t bytes = savings.by_form(at(value), form, read[at(value)]);
      if (!savings.may_take(form) || bytes <= 0) continue;
      const Source own{form.store_seconds + form.restore_seconds, bytes};
      if (best.bytes == 0 || is_cheaper(own, best)) best = own;
      most = std::max(most, bytes);
    }
    const bool optional = savings.facts.optional()[at(value)] && !read[at(value)];
    if (best.bytes == 0 || (optional && !is_cheaper(best, whole))) continue;
    sources.push_back({best.seconds * (static_cast<double>(most) / static_cast<double>(best.bytes)), most});
    if (optional) repeated.bytes -= most;
  }
  if (repeated.bytes <= 0) return;
  repeated.seconds *= static_cast<double>(repeated.bytes) / static_cast<double>(whole.bytes);
  sources.push_back(repeated);
}

}  // namespace

int64_t least_peak_bound(const TrainingStep& step, double variance) {
  const Savings savings(step, variance);
  std::vector<int64_t> saved(step.events() + 1, 0);
  for (size_t value = 0; value < step.values(); ++value) {
    if (savings.facts.forward_ends()[value] >= savings.facts.last_reads()[value]) continue;
    const int64_t most = savings.most(value, false);
    saved[at(savings.facts.forward_ends()[value]) + 1] += most;
    saved[at(savings.facts.last_reads()[value]) + 1] -= most;
  }
  std::partial_sum(saved.begin(), saved.end(), saved.begin());
  int64_t bound = 0;
  for (size_t event = 0; event < step.events(); ++event) {
    if (event >= step.ops()) {
      for (const int32_t value : step.backward[event - step.ops()]) {
        if (!savings.waits(at(value), event)) continue;
        saved[event] += savings.most(at(value), true) - savings.most(at(value), false);
      }
    }
    bound = std::max(bound, savings.alive[event] - saved[event]);
  }
  return bound;
}

std::vector<double> least_seconds_bounds(const TrainingStep& step, const std::vector<int64_t>& budgets,
                                         double variance) {
  const Savings savings(step, variance);
  std::vector<double> bounds(budgets.size(), 0.0);
  // Where the most must be saved, and around it, is where it costs most.
  std::vector<size_t> events(step.events());
  std::iota(events.begin(), events.end(), size_t{0});
  std::stable_sort(events.begin(), events.end(),
                   [&](size_t a, size_t b) { return savings.alive[a] > savings.alive[b]; });
  constexpr size_t kMostEvents = 64;
  const size_t stride = std::max<size_t>(1, events.size() / (2 * kMostEvents));
  std::vector<uint8_t> read(step.values(), 0);
  std::vector<Source> sources;
  for (size_t i = 0; i < events.size() && i < kMostEvents * stride; i += stride) {
    const size_t event = events[i];
    const std::vector<int32_t> none;
    const auto& row = event >= step.ops() ? step.backward[event - step.ops()] : none;
    for (const int32_t value : row) read[at(value)] = 1;
    sources.clear();
    for (size_t op = 0; op < step.ops(); ++op) add_sources(savings, op, event, read, sources);
    for (const int32_t value : row) read[at(value)] = 0;
    // The last one by a part: the linear relaxation.
    std::stable_sort(sources.begin(), sources.end(), is_cheaper);
    for (size_t j = 0; j < budgets.size(); ++j) {
      int64_t excess = savings.alive[event] - budgets[j];
      double seconds = 0;
      for (size_t k = 0; k < sources.size() && excess > 0; ++k) {
        const int64_t part = std::min(excess, sources[k].bytes);
        seconds += sources[k].seconds * (static_cast<double>(part) / static_cast<double>(sources[k].bytes));
        excess -= part;
      }
      bounds[j] = std::max(bounds[j], seconds);
    }
  }
  return bounds;
}

}  // namespace actcore
