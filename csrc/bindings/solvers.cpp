#include "bindings/solvers.h"

#include <pybind11/stl.h>

#include "solvers/allocation.h"

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

}  // namespace

void bind_solvers(py::module_& m) {
  // The arguments are copied first: nothing of Python is touched while other threads have the interpreter.
  m.def("allocate", solve_allocation, py::arg("costs"), py::arg("nbytes"), py::arg("budget"), py::arg("max_steps"),
        py::call_guard<py::gil_scoped_release>(),
        "Choices, lower bound, whether they are proven optimal, and steps. The arguments have been checked.");
}

}  // namespace actcore
