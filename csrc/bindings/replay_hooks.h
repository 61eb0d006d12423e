#pragma once
#include <pybind11/pybind11.h>

namespace actcore {

void bind_hooks(pybind11::module_& module);

}  // namespace actcore
