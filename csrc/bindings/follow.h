// How integrations' CallFollower compares the calls of a forward with those that are expected.
#pragma once
#include <pybind11/pybind11.h>

namespace actcore {

// Tells whoever follows a forward, a CallFollower or a Recording, that a function is called, that it has returned these
// tensors, or that it has failed, whose error stays. False: an error.
bool begin_followed(PyObject* follower, PyObject* call);
bool end_followed(PyObject* follower, PyObject* call, PyObject* outputs);
void fail_followed(PyObject* follower);

void bind_follow(pybind11::module_& module);

}  // namespace actcore
