// What integrations' Tape does of each operator of a forward.
#pragma once
#include <pybind11/pybind11.h>

namespace actcore {

void bind_tape(pybind11::module_& module);

}  // namespace actcore
