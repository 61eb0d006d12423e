// Operators of actcore as functions of Python that pass torch's dispatcher by.
#pragma once
#include <pybind11/pybind11.h>

namespace actcore {

void bind_kernels(pybind11::module_& module);
// Whether a function of Python is one of them.
bool is_kernel(PyObject* function);

}  // namespace actcore
