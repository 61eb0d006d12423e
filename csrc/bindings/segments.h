// Operators of a forward that backward repeats together, and what autograd holds in the place of what they make.
#pragma once
#include <pybind11/pybind11.h>

#include "bindings/objects.h"

namespace actcore {

// The base class of Segment in integrations' runtime, whose attributes have these names in Python.
struct Segment {
  enum Member {
    kModel,
    kDouble,
    kRounded,
    kCalls,
    kGiven,
    kPrograms,
    kBecomes,
    kHandles,
    kWaiting,
    kStored,
    kMade,
    kSeen,
    kReleased,
    kLock,
    kMembers,
  };
  PyObject ob_base;
  PyObject* members[kMembers];
  Py_ssize_t done;  // calls that the forward has made
  long uses;        // uses that are going on
};

// What autograd, or the call of an inner segment, holds in the place of a tensor that a segment recomputes.
struct Handle {
  enum Member { kSegment, kValue, kGeometry, kLater, kStored, kVersion, kMembers };
  PyObject ob_base;
  PyObject* members[kMembers];
  PyObject* weak;
  char held;    // whether the segment counts it
  char shares;  // whether it is read from the form that another handle stores
};

inline PyObject* at(Handle* self, Handle::Member which) { return self->members[which]; }

extern PyTypeObject *segment_type, *handle_type;

inline PyObject* at(Segment* self, Segment::Member which) { return self->members[which]; }

// The saved tensor of a handle, recomputed if need be; null with an error.
Ref get(Handle* handle);
// Has the segment recompute the tensor of a handle, unless it, or a stored form of it, is there. False: an error.
bool prepare(Handle* handle);
// Uncounts a saved tensor that is gone. The collector may call this at any moment in any thread: while the segment is in
// use, the value is only queued, and counted at the end of the use.
void let_go(Handle* handle);
// The segment that an object is; null for another object.
Segment* segment_of(PyObject* object);
// A Handle of a tensor in a value's memory, which the segment counts; null with an error.
Ref handle_of(PyObject* segment, PyObject* value, PyObject* tensor, PyObject* later, bool shares);
// Notes how many of a segment's calls have run, and which values the last of them have overwritten. False: an error.
bool advance(Segment* self, Py_ssize_t done, PyObject* changes);
// How a tensor lies in its storage, as Geometry has it; null with an error.
Ref geometry_of(PyObject* tensor);

void bind_segments(pybind11::module_& module);

}  // namespace actcore
