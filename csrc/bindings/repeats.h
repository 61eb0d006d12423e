// How a call of an operator is repeated, and what this knows of integrations' runtime for it.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/replay_known.h"

namespace actcore {

// The classes and functions of Python that repetitions know.
struct Repeats {
  explicit Repeats(const pybind11::dict& given);

  PyTypeObject *geometry, *version, *reference, *outer, *call, *held_tensor, *elsewhere, *scratch;
  PyObject *make_lock, *is_retained, *here, *below, *disable_autocast, *dispatch_modes, *as_strided, *empty, *used_up,
      *require_memory, *tensors_in, *aside;
  Field version_counter, version_found, reference_value, reference_geometry, outer_place, outer_lies;
  Field call_function, call_args, call_kwargs, call_makes, call_changes, call_takes, call_draws, call_grad, call_shapes;
  Field held_packed, elsewhere_made, scratch_like;
  PyObject* acquire = PyUnicode_InternFromString("acquire");
  PyObject* release = PyUnicode_InternFromString("release");
  PyObject* is_stored = PyUnicode_InternFromString("_is_stored");
  PyObject* only_stored = PyUnicode_InternFromString("_only_stored");
  PyObject* program = PyUnicode_InternFromString("_program");
  PyObject* store = PyUnicode_InternFromString("_store");
  PyObject* explain = PyUnicode_InternFromString("_explain");
  PyObject* prepare = PyUnicode_InternFromString("prepare");
  PyObject* check = PyUnicode_InternFromString("check");
  PyObject* view = PyUnicode_InternFromString("view");
  PyObject* repeat = PyUnicode_InternFromString("repeat");
  PyObject* repeating = PyUnicode_InternFromString("repeating");
  PyObject* data = PyUnicode_InternFromString("data");
  PyObject* is_meta = PyUnicode_InternFromString("is_meta");
};

extern std::unique_ptr<Repeats> repeats;

// Whether gradients are enabled, where calls set it: kernels may ask for that.
class Grad {
 public:
  // Sets it as a call had it. False: an error.
  bool set(PyObject* enabled);
  // Notes that others may have set it.
  void forget() { now_ = nullptr; }

 private:
  PyObject* now_ = nullptr;  // borrowed: True or False
};

// A block that repeats operators, below autograd and autocast: the tape saw operators there, with casts as operators of
// their own. No forward follows what runs in it. Gradients are enabled after it as they were before.
class Repeating {
 public:
  Repeating();
  ~Repeating();
  Repeating(const Repeating&) = delete;
  // Whether it was entered; otherwise there is an error.
  explicit operator bool() const { return entered_ && below_ && autocast_; }
  // Leaves it, which the end of the block does, too. False: an error.
  bool leave();
  Grad* grad() { return &grad_; }

 private:
  Block below_, autocast_;
  Ref before_, enabled_;
  Grad grad_;
  bool entered_ = false;
};

// Repeats a call, and adds what it makes. False: an error.
bool repeat_call(PyObject* call, PyObject* made, PyObject* given, Grad* grad);
// A Version of a tensor; null with an error.
Ref version_of(PyObject* tensor);
// The tensor of a Geometry in the storage of another one, and what a stored form restores, where no forward follows it.
Ref view_aside(PyObject* geometry, PyObject* base);
Ref restored_aside(PyObject* packed);

}  // namespace actcore
