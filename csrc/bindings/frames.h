// Which module's forward runs, read off Python's stack.
#pragma once
#include <Python.h>

namespace actcore {

// Whether a module is the innermost whose forward runs: the `self` of the innermost frame that runs `code`, that of
// nn.Module._call_impl. False for no module.
bool is_innermost(PyObject* module, PyObject* code);

}  // namespace actcore
