// The formulas by which backward recomputes tensors of a forward.
#pragma once
#include <pybind11/pybind11.h>

#include "bindings/objects.h"

namespace actcore {

// The base class of Formulas, whose attributes have these names in Python. Each is null until it is set.
struct NotedCalls {
  enum Member { kBefore, kNoted, kFormulas, kEntries, kExposed, kParts, kHolders, kPut, kLast, kMembers };
  PyObject ob_base;
  PyObject* members[kMembers];
  char fully;  // whether each call is left to Python
};

constexpr const char* kNotedMembers[NotedCalls::kMembers] = {"before", "noted",   "formulas", "entries", "exposed",
                                                             "parts",  "holders", "put",      "last"};

inline PyObject* at(NotedCalls* self, NotedCalls::Member which) { return self->members[which]; }

// Whether an object is a NotedCalls with all that it goes by.
bool is_noted_calls(PyObject* object);
// Makes the formula of a call that is over, or has Python do it. False: an error.
bool note_call(PyObject* formulas, PyObject* call, PyObject* outputs);
// A formula with its operands held; None where one is gone; null with an error.
Ref bound_of(PyObject* formula);
// The tensor in whose place autograd holds a Recomputed; null with an error.
Ref recomputed_tensor(PyObject* recomputed);
// The operand that an Inner holds; null with an error.
Ref inner_tensor(PyObject* inner);

void bind_formulas(pybind11::module_& module);
void bind_bound(pybind11::module_& module);

}  // namespace actcore
