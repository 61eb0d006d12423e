#pragma once
#include <pybind11/pybind11.h>

namespace actcore {

void bind_calls(pybind11::module_& module);

}  // namespace actcore
