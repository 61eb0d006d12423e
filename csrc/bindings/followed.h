// What CallFollower keeps of the calls of a forward, where several parts in C read it.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/objects.h"

namespace actcore {

constexpr int kDeepest = 16;  // calls inside of each other

// The base class of CallFollower, whose attributes have these names in Python.
struct FollowedCalls {
  enum Member {
    kExpected,  // a tuple of FollowedCall
    kValues,    // a dict from addresses of storages to the values in them
    kMakers,  // a dict from values that are recomputed to the keys of the segments that saved tensors of them wait for
    kSegments,  // a dict of the segments so far
    kPending,   // the handles of tensors that the running call has made, with these tensors
    kHidden,    // the tensors that segments need, and that the running call has made without returning them, by value
    kRead,      // a dict of what the forward keeps for repetitions, by Take.key
    kLast,      // the call that was over last; None before the first
    kReplay,    // the session's Replay; None where each tensor goes the full way, or before the first
    kMembers,
  };
  PyObject ob_base;
  PyObject* members[kMembers];
  Py_ssize_t at;    // the place of the next
  long long nodes;  // how many autograd nodes there were at the last event
  long modes;       // how many modes of operators were active when the forward began
  char stopped;     // whether nothing is followed any more
  int depth;
  PyObject* open[kDeepest];   // the calls that are running; null for one that is another than expected
  long long begun[kDeepest];  // how many nodes there were when they began
};

inline PyObject* at(FollowedCalls* self, FollowedCalls::Member which) { return self->members[which]; }

// The classes and functions of Python that this knows.
struct Follows {
  explicit Follows(const pybind11::dict& given);

  PyTypeObject *tensor, *parameter, *expected, *call, *repeated_function, *known_site, *method_wrapper;
  PyObject *count_nodes, *grad_enabled, *function_modes, *dispatch_modes, *autocast_enabled, *get_autocast, *held,
      *elsewhere, *scratch;
  Field function, grad, before, nodes, random, changed, results, repeated, made, call_function, call_arguments,
      call_args, call_kwargs;
  Field pattern, arguments, sharing, autocast, node, early, takes, advances, site;
  PyObject* name_before = PyUnicode_InternFromString("before");
  PyObject* name_after = PyUnicode_InternFromString("after");
  PyObject* name_failed = PyUnicode_InternFromString("failed");
  PyObject* name_begin = PyUnicode_InternFromString("begin");
  PyObject* name_acquire = PyUnicode_InternFromString("_acquire");
  PyObject* name_release = PyUnicode_InternFromString("_release");
  PyObject* name_write = PyUnicode_InternFromString("_write");
  PyObject* name_differs = PyUnicode_InternFromString("differs");
  PyObject* name_returns = PyUnicode_InternFromString("returns");
  PyObject* name_given = PyUnicode_InternFromString("_given");
  PyObject* name_segment = PyUnicode_InternFromString("_segment");
  PyObject* name_handle_of_tape = PyUnicode_InternFromString("_handle_of_tape");
  PyObject* name_shape = PyUnicode_InternFromString("shape");
  PyObject* name_dtype = PyUnicode_InternFromString("dtype");
  PyObject* name_untyped_storage = PyUnicode_InternFromString("untyped_storage");
  PyObject* name_cdata = PyUnicode_InternFromString("_cdata");
  PyObject* name_weak_ref = PyUnicode_InternFromString("_weak_ref");
  PyObject* name_grad_fn = PyUnicode_InternFromString("grad_fn");
  PyObject* name_hex = PyUnicode_InternFromString("hex");
};

extern std::unique_ptr<Follows> follows;

// Whether a call that has recomputed operators is given the same as the expected one; where it cannot be told here, it is
// not.
bool is_given_same(FollowedCalls* self, PyObject* repeated, PyObject* call);
// Gives segments what they take of a call, a tuple of Take. False: an error.
bool give(FollowedCalls* self, PyObject* takes, PyObject* call);
// Whether segments are given tensors that the call has not saved.
bool misses_hidden(FollowedCalls* self, PyObject* takes);
// Tells the segments how far they are, by a tuple of Advance. False: an error.
bool advance_all(FollowedCalls* self, PyObject* advances);
// The call that is running, as expected; borrowed, null for none.
PyObject* running_call(FollowedCalls* self);
// What autograd holds in the place of a tensor that is recomputed; None for one that is not.
PyObject* handle_in(PyObject* object, PyObject* const* given, Py_ssize_t count);

}  // namespace actcore
