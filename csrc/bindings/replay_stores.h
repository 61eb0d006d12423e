#pragma once
#include "bindings/replay_known.h"

namespace actcore {

// A Kept of a tensor.
Ref kept_of(PyObject* tensor);
// Stores a tensor of the site's description; None where the session has to, null with an error.
Ref stored_here(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address);
// Stores a tensor as the forward before has; None if it is another, or has to go the full way; null with an error.
PyObject* replayed(PyObject* replay, PyObject* tensor);
// Stores a tensor that something else than autograd holds, as the site says; None where it is not as it was then. Who
// calls has compared the tensor.
Ref hold_as_before(PyObject* replay, PyObject* site, PyObject* tensor);
// Has the tensor that was stored last count as one that autograd would not have saved. False: an error.
bool count_as_unsaved(PyObject* replay);
// Whether an object is a Replay, and the call that runs has no tensors of other classes, which would see what is asked of
// them.
bool is_replayable(PyObject* object);
// The tensor in whose place autograd holds this; null with an error.
PyObject* unpacked(PyObject* packed);

}  // namespace actcore
