#include "bindings/solvers.h"

#include <pybind11/stl.h>

#include "solvers/allocation.h"
#include "solvers/checkpoint_plans.h"
#include "solvers/checkpoint_segments.h"
#include "solvers/checkpoint_simulator.h"
#include "solvers/checkpoint_step.h"
#include "solvers/steps.h"

namespace py = pybind11;

namespace actcore {

namespace {

using Solved = std::tuple<std::vector<int32_t>, double, bool, int64_t>;

Solved solve_allocation(const std::vector<std::vector<double>>& costs, const std::vector<std::vector<int64_t>>& nbytes,
                        int64_t budget, int64_t max_steps) {
  std::vector<std::vector<Choice>> tensors(costs.size());
  for (size_t i = 0; i < costs.size(); ++i) {
    for (size_t j = 0; j < costs[i].size(); ++j) tensors[i].push_back({costs[i][j], nbytes[i][j]});
  }
  Allocation found = allocate(tensors, budget, max_steps);
  return {std::move(found.choices), found.lower_bound, found.optimal, found.steps};
}

using Steps = std::tuple<std::vector<int32_t>, std::vector<double>, double>;

std::vector<Steps> solve_steps(const std::vector<double>& values, const std::vector<double>& weights,
                               const std::vector<int32_t>& pieces) {
  std::vector<Steps> result;
  for (StepFit& fit : fit_steps(values, weights, pieces)) {
    result.emplace_back(std::move(fit.cuts), std::move(fit.levels), fit.error);
  }
  return result;
}

using Levels = std::tuple<std::vector<int32_t>, double>;

std::vector<Levels> solve_levels(const std::vector<double>& values, const std::vector<double>& weights,
                                 const std::vector<double>& candidates, const std::vector<int32_t>& counts) {
  std::vector<Levels> result;
  for (LevelFit& fit : fit_levels(values, weights, candidates, counts)) {
    result.emplace_back(std::move(fit.chosen), fit.error);
  }
  return result;
}

using Found = std::tuple<std::vector<uint8_t>, int64_t, int64_t, int64_t, int64_t>;

Found solve_segments(const std::vector<int64_t>& nbytes, const std::vector<std::pair<int32_t, int32_t>>& edges,
                     int64_t max_steps) {
  Segments found = find_segments(nbytes, edges, max_steps);
  return {std::move(found.kept), found.kept_sum, found.largest, found.lower_bound, found.steps};
}

using Lists = std::vector<std::vector<int32_t>>;

using FormNumbers = std::tuple<int64_t, int64_t, int64_t, double, double, double, bool>;

TrainingStep make_step(std::vector<int64_t> nbytes, std::vector<int32_t> reuses, std::vector<int32_t> until,
                       Lists reads, Lists makes, std::vector<double> seconds, std::vector<uint8_t> repeatable,
                       std::vector<int64_t> scratch, Lists backward, std::vector<int64_t> other,
                       const std::vector<std::vector<FormNumbers>>& forms, std::vector<double> weights,
                       std::vector<int64_t> aside, std::vector<int32_t> stored_at, std::vector<uint8_t> formed) {
  std::vector<std::vector<Form>> menus(forms.size());
  for (size_t value = 0; value < forms.size(); ++value) {
    for (const auto& [held, restored, passing, store_seconds, restore_seconds, noise, serves] : forms[value]) {
      menus[value].push_back({held, restored, passing, store_seconds, restore_seconds, noise, serves});
    }
  }
  return {std::move(nbytes),  std::move(reuses),     std::move(until),   std::move(reads),     std::move(makes),
          std::move(seconds), std::move(repeatable), std::move(scratch), std::move(backward),  std::move(other),
          std::move(menus),   std::move(weights),    std::move(aside),   std::move(stored_at), std::move(formed)};
}

using Simulated =
    std::tuple<int64_t, int32_t, double, double, std::vector<int64_t>, std::vector<int32_t>, std::vector<int32_t>>;

Simulated simulate(const TrainingStep& step, const std::vector<uint8_t>& ranks, const std::vector<int8_t>& forms) {
  const StepFacts facts(step);
  Simulator simulator(facts);
  const Usage usage = simulator.run(ranks, forms);
  std::vector<int64_t> bytes(simulator.bytes().begin(),
                             simulator.bytes().begin() + static_cast<int64_t>(step.events()));
  return {usage.peak,       usage.event,       usage.seconds,    usage.variance,
          std::move(bytes), simulator.outer(), simulator.inner()};
}

using Planned = std::tuple<std::vector<uint8_t>, std::vector<int8_t>, bool, int64_t, double, double>;
using Front = std::tuple<std::vector<Planned>, bool, int64_t>;

Front solve_plans(const TrainingStep& step, int64_t max_steps, double variance) {
  Plans found = find_plans(step, max_steps, variance);
  Front result;
  for (CheckpointPlan& plan : found.front) {
    std::get<0>(result).emplace_back(std::move(plan.chosen.ranks), std::move(plan.chosen.forms), plan.nested,
                                     plan.usage.peak, plan.usage.seconds, plan.usage.variance);
  }
  std::get<1>(result) = found.exact;
  std::get<2>(result) = found.steps;
  return result;
}

}  // namespace

void bind_solvers(py::module_& m) {
  // The arguments are copied first: nothing of Python is touched while other threads have the interpreter.
  m.def("allocate", solve_allocation, py::arg("costs"), py::arg("nbytes"), py::arg("budget"), py::arg("max_steps"),
        py::call_guard<py::gil_scoped_release>(),
        "Choices, lower bound, whether they are proven optimal, and steps. The arguments have been checked.");
  m.def("fit_steps", solve_steps, py::arg("values"), py::arg("weights"), py::arg("pieces"),
        py::call_guard<py::gil_scoped_release>(),
        "For each number of pieces: cuts, levels and error. The arguments have been checked.");
  m.def("fit_levels", solve_levels, py::arg("values"), py::arg("weights"), py::arg("candidates"), py::arg("counts"),
        py::call_guard<py::gil_scoped_release>(),
        "For each number of levels: the candidates chosen, and the error. The arguments have been checked.");
  m.def("find_segments", solve_segments, py::arg("nbytes"), py::arg("edges"), py::arg("max_steps"),
        py::call_guard<py::gil_scoped_release>(),
        "What is kept, its sum, the largest segment's, a lower bound of both together, and steps. Checked, too.");
  py::class_<TrainingStep>(m, "TrainingStep", "The lists of an actcore.TrainingStep, which has checked them.")
      .def(py::init(&make_step), py::arg("nbytes"), py::arg("reuses"), py::arg("until"), py::arg("reads"),
           py::arg("makes"), py::arg("seconds"), py::arg("repeatable"), py::arg("scratch"), py::arg("backward"),
           py::arg("other"), py::arg("forms"), py::arg("weights"), py::arg("aside"), py::arg("stored_at"),
           py::arg("formed"));
  m.def("simulate", simulate, py::arg("step"), py::arg("ranks"), py::arg("forms"),
        py::call_guard<py::gil_scoped_release>(),
        "Peak, its event, seconds, variance, the bytes of each event, and for each operator the first one of its outer "
        "and of "
        "its inner segment, or -1.");
  m.def(
      "find_plans", solve_plans, py::arg("step"), py::arg("max_steps"), py::arg("variance"),
      py::call_guard<py::gil_scoped_release>(),
      "The plans (ranks, forms, whether checkpoints are nested, peak, seconds, variance) by rising peak, whether none "
      "is missing, and steps. forms: empty where all is as it is.");
  m.def("least_peak_bound", least_peak_bound, py::arg("step"), py::arg("variance"),
        py::call_guard<py::gil_scoped_release>(), "No choice of kept values has a lower peak.");
  m.def("least_seconds_bounds", least_seconds_bounds, py::arg("step"), py::arg("budgets"), py::arg("variance"),
        py::call_guard<py::gil_scoped_release>(), "For each budget, no choice within it takes fewer seconds.");
}

}  // namespace actcore
