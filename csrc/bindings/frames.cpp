#include "bindings/frames.h"

#include "bindings/objects.h"

#if PY_VERSION_HEX < 0x030C0000
// Python 3.11 makes a dictionary of all of a frame's variables, unset ones by way of exceptions, for who asks for one of
// them: a third of what it takes to see to a saved tensor. So its frames are read as they are.
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#endif

namespace actcore {

#if PY_VERSION_HEX < 0x030C0000

bool is_innermost(PyObject* module, PyObject* code) {
  if (module == nullptr) return false;
  for (const _PyInterpreterFrame* frame = PyThreadState_Get()->cframe->current_frame; frame; frame = frame->previous) {
    if (reinterpret_cast<PyObject*>(frame->f_code) != code) continue;
    // The first argument, which is in a cell where an inner function reads it.
    PyObject* self = frame->localsplus[0];
    if (self != nullptr && PyCell_Check(self)) self = PyCell_GET(self);
    return self == module;
  }
  return false;
}

#else

bool is_innermost(PyObject* module, PyObject* code) {
  if (module == nullptr) return false;
  for (Ref frame = Ref::to(reinterpret_cast<PyObject*>(PyEval_GetFrame())); frame;) {
    auto* here = reinterpret_cast<PyFrameObject*>(frame.get());
    Ref own(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    if (own.get() == code) {
      Ref self(PyFrame_GetVarString(here, "self"));
      if (!self) PyErr_Clear();
      return self.get() == module;
    }
    frame = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return false;
}

#endif

}  // namespace actcore
