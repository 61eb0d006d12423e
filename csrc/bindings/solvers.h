// The solvers as Python calls them.
#pragma once

#include <pybind11/pybind11.h>

namespace actcore {

void bind_solvers(pybind11::module_& m);

}  // namespace actcore
