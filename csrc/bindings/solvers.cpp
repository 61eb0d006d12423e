#include "bindings/solvers.h"

#include <pybind11/stl.h>

#include "solvers/allocation.h"
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
}

}  // namespace actcore
