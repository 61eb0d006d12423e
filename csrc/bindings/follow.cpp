// What integrations' CallFollower does of each call of a forward: it compares the function, its autograd nodes and its
// results with those that are expected, and gives the results their numbers. Calls of whose operators some are
// recomputed, and what differs, are left to its methods.
#include "bindings/follow.h"

#include <cstddef>
#include <stdexcept>
#include <string>

#include "bindings/followed.h"
#include "bindings/repeats.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

PyTypeObject* followed_type = nullptr;

// How many autograd nodes this thread has made. -1: an error.
long long count_nodes() {
  Ref count(PyObject_CallNoArgs(follows->count_nodes));
  return count ? PyLong_AsLongLong(count.get()) : -1;
}

bool is_same_count(PyObject* expected, long long count) { return PyLong_AsLongLong(expected) == count; }

// Tells the follower that a call differs, or in which way what it has returned does.
bool differs(FollowedCalls* self, PyObject* call, const char* how) {
  Ref text(PyUnicode_FromString(how));
  PyObject* given[] = {&self->ob_base, call, text.get()};
  return text && Ref(PyObject_VectorcallMethod(follows->name_differs, given, 3, nullptr));
}

// Whether the follower's Python methods have to handle a call, too.
bool is_more(PyObject* expected) {
  PyObject* changed = follows->changed.of(expected);
  return follows->repeated.of(expected) != Py_None || follows->random.of(expected) == Py_True ||
         (PyTuple_Check(changed) && PyTuple_GET_SIZE(changed) != 0);
}

// Whether a function is the expected one. Each read of a property makes a new method-wrapper.
bool is_function(PyObject* expected, PyObject* function) {
  if (expected == function) return true;
  if (!Py_IS_TYPE(function, follows->method_wrapper) || !Py_IS_TYPE(expected, follows->method_wrapper)) return false;
  return PyObject_RichCompareBool(expected, function, Py_EQ) == 1;
}

bool begin(FollowedCalls* self, PyObject* call) {
  const int place = self->depth++;
  if (self->stopped) return true;
  if (at(self, FollowedCalls::kExpected) == nullptr) {
    PyErr_SetString(PyExc_TypeError, "FollowedCalls must be initialized");
    return false;
  }
  if (place >= kDeepest) return differs(self, call, "");
  const long long nodes = count_nodes();
  Ref grad(PyObject_CallNoArgs(follows->grad_enabled));
  if (nodes < 0 || !grad) return false;
  const bool more = self->at < PyTuple_GET_SIZE(at(self, FollowedCalls::kExpected));
  Ref expected = Ref::to(more ? PyTuple_GET_ITEM(at(self, FollowedCalls::kExpected), self->at) : nullptr);
  const bool same = expected && is_function(follows->function.of(expected.get()), follows->call_function.of(call)) &&
                    follows->grad.of(expected.get()) == grad.get() &&
                    is_same_count(follows->before.of(expected.get()), nodes - self->nodes);
  if (PyErr_Occurred()) return false;
  if (!same) return differs(self, call, "");
  ++self->at;
  self->nodes = self->begun[place] = nodes;
  self->open[place] = Py_NewRef(expected.get());
  if (!is_more(expected.get())) return true;
  PyObject *repeated = follows->repeated.of(expected.get()), *early = nullptr;
  if (repeated == Py_None || is_given_same(self, repeated, call)) {
    if (follows->random.of(expected.get()) == Py_True && !called(&self->ob_base, follows->name_acquire)) return false;
    early = repeated == Py_None ? nullptr : follows->early.of(repeated);
    if (early == nullptr || PyTuple_GET_SIZE(early) == 0) return true;
    if (!give(self, early, call)) return false;
  } else if (PyErr_Occurred()) {
    return false;
  } else {
    PyObject* given[] = {&self->ob_base, expected.get(), call};
    if (!Ref(PyObject_VectorcallMethod(follows->name_begin, given, 3, nullptr))) return false;
  }
  self->nodes = self->begun[place] = count_nodes();  // it may have made some
  return self->nodes >= 0;
}

// Whether a result is the expected one; gives it its value if it has new memory. -1: Python has to decide, or there is an error.
int returns_one(FollowedCalls* self, PyObject* output, PyObject* result) {
  if (!Py_IS_TYPE(output, follows->tensor) && !Py_IS_TYPE(output, follows->parameter)) return -1;
  PyObject *value = PyTuple_GET_ITEM(result, 0), *is_new = PyTuple_GET_ITEM(result, 1);
  if (!has(output, follows->name_dtype, PyTuple_GET_ITEM(result, 3))) return -1;
  Ref shape = attribute(output, follows->name_shape);
  if (!shape || PyObject_RichCompareBool(shape.get(), PyTuple_GET_ITEM(result, 2), Py_EQ) != 1) return -1;
  Ref storage = called(output, follows->name_untyped_storage);
  Ref address = storage ? attribute(storage.get(), follows->name_cdata) : Ref();
  if (!address) return -1;
  PyObject* there = PyDict_GetItemWithError(at(self, FollowedCalls::kValues), address.get());
  if (there == nullptr) {
    if (is_new != Py_True) return value == Py_None;
    if (PyDict_GET_SIZE(at(self, FollowedCalls::kValues)) >= kRoom) return -1;
    Ref counted = called(storage.get(), follows->name_weak_ref);  // the map gives it back
    return counted && PyDict_SetItem(at(self, FollowedCalls::kValues), address.get(), value) == 0 ? 1 : -1;
  }
  return PyObject_RichCompareBool(there, value, Py_EQ);
}

// Whether a call has returned what is expected. -1: an error.
int returns(FollowedCalls* self, PyObject* expected, PyObject* outputs) {
  PyObject* results = follows->results.of(expected);
  bool done = PyTuple_CheckExact(results) && PyList_CheckExact(outputs) &&
              PyTuple_GET_SIZE(results) == PyList_GET_SIZE(outputs);
  for (Py_ssize_t i = 0; done && i < PyTuple_GET_SIZE(results); ++i)
    done = returns_one(self, PyList_GET_ITEM(outputs, i), PyTuple_GET_ITEM(results, i)) == 1;
  if (done) return 1;
  if (PyErr_Occurred() && !cannot_tell()) return -1;
  PyObject* given[] = {&self->ob_base, expected, outputs};
  Ref told(PyObject_VectorcallMethod(follows->name_returns, given, 3, nullptr));
  return told ? told.get() == Py_True : -1;
}

// Whether the node of a call's first result is of the expected class; None for no node. -1: an error.
int has_node(PyObject* node, PyObject* outputs) {
  if (PyList_GET_SIZE(outputs) == 0) return node == Py_None;
  Ref found = attribute(PyList_GET_ITEM(outputs, 0), follows->name_grad_fn);
  if (!found) return -1;
  return found.get() == Py_None ? node == Py_None : reinterpret_cast<PyObject*>(Py_TYPE(found.get())) == node;
}

// Gives the memory that a call has written to its new values. False: an error.
bool note_changes(FollowedCalls* self, PyObject* changed, PyObject* call) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(changed); ++i) {
    PyObject *one = PyTuple_GET_ITEM(changed, i), *arguments = follows->call_arguments.of(call);
    Ref tensor = Ref::to(PyList_GetItem(arguments, PyLong_AsSsize_t(PyTuple_GET_ITEM(one, 0))));
    if (!tensor) return false;
    PyObject* given[] = {&self->ob_base, tensor.get(), PyTuple_GET_ITEM(one, 1)};
    if (!Ref(PyObject_VectorcallMethod(follows->name_write, given, 3, nullptr))) return false;
  }
  return true;
}

// Does what there is to do of a call that draws, writes to what it is given, or runs operators that segments repeat.
bool end_more(FollowedCalls* self, PyObject* expected, PyObject* call, PyObject* outputs) {
  PyObject* repeated = follows->repeated.of(expected);
  if (follows->random.of(expected) == Py_True && !called(&self->ob_base, follows->name_release)) return false;
  if (!note_changes(self, follows->changed.of(expected), call)) return false;
  int same = returns(self, expected, outputs);
  if (same > 0 && repeated != Py_None) same = has_node(follows->node.of(repeated), outputs);
  if (same < 0) return false;
  if (same == 0) return differs(self, call, " with other results");
  if (repeated != Py_None) {
    PyObject* takes = follows->takes.of(repeated);
    if (misses_hidden(self, takes)) return differs(self, call, ", which has saved other tensors");
    if (!give(self, takes, call) || !advance_all(self, follows->advances.of(repeated))) return false;
  }
  PyDict_Clear(at(self, FollowedCalls::kHidden));
  return PyList_SetSlice(at(self, FollowedCalls::kPending), 0, PY_SSIZE_T_MAX, nullptr) == 0;
}

// Does what there is to do of a call that has returned, while it is still among those that are running.
bool end(FollowedCalls* self, PyObject* call, PyObject* outputs) {
  const int place = self->depth - 1;
  Ref expected = Ref::to(place < 0 || place >= kDeepest ? nullptr : self->open[place]);
  if (!expected || self->stopped) return true;
  const long long nodes = count_nodes();
  if (nodes < 0) return false;
  const bool same_nodes = is_same_count(follows->nodes.of(expected.get()), nodes - self->begun[place]);
  if (PyErr_Occurred()) return false;
  if (!same_nodes && is_more(expected.get())) return differs(self, call, " with other autograd nodes");
  if (is_more(expected.get())) {
    if (!end_more(self, expected.get(), call, outputs)) return false;
  } else {
    const int same = returns(self, expected.get(), outputs);
    if (same < 0 || (same == 0 && !differs(self, call, " with other results"))) return false;
  }
  if (self->stopped) return true;
  const bool more = is_more(expected.get());
  Py_XSETREF(self->members[FollowedCalls::kLast], expected.release());
  self->nodes = more ? count_nodes() : nodes;  // what was given may have made some
  return self->nodes >= 0 && (same_nodes || differs(self, call, ""));
}

// Takes the call that is over from those that are running.
void close(FollowedCalls* self) {
  if (self->depth == 0) return;
  --self->depth;
  if (self->depth < kDeepest) Py_CLEAR(self->open[self->depth]);
}

PyObject* running(PyObject* object, PyObject*) {
  PyObject* found = running_call(reinterpret_cast<FollowedCalls*>(object));
  return Py_NewRef(found == nullptr ? Py_None : found);
}

int initialize(PyObject* object, PyObject* args, PyObject* kwargs) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  PyObject *expected = nullptr, *dicts[6] = {};
  long modes = 0;
  if (follows == nullptr || repeats == nullptr || kwargs != nullptr ||
      !PyArg_ParseTuple(args, "O!O!O!O!O!O!O!l", &PyTuple_Type, &expected, &PyDict_Type, &dicts[0], &PyDict_Type,
                        &dicts[1], &PyDict_Type, &dicts[2], &PyList_Type, &dicts[3], &PyDict_Type, &dicts[4],
                        &PyDict_Type, &dicts[5], &modes)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "FollowedCalls takes what it goes by by place, after bind_follow");
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i)
    if (!Py_IS_TYPE(PyTuple_GET_ITEM(expected, i), follows->expected)) {
      PyErr_Format(PyExc_TypeError, "calls must be FollowedCall, got %R", PyTuple_GET_ITEM(expected, i));
      return -1;
    }
  Py_XSETREF(self->members[FollowedCalls::kExpected], Py_NewRef(expected));
  for (int i = 0; i < 6; ++i) Py_XSETREF(self->members[FollowedCalls::kValues + i], Py_NewRef(dicts[i]));
  for (const FollowedCalls::Member none : {FollowedCalls::kLast, FollowedCalls::kReplay})
    Py_XSETREF(self->members[none], Py_NewRef(Py_None));
  self->at = 0, self->stopped = 0, self->modes = modes;
  self->nodes = count_nodes();
  return self->nodes < 0 ? -1 : 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  Py_VISIT(Py_TYPE(object));
  for (PyObject* held : self->members) Py_VISIT(held);
  for (PyObject* open : self->open) Py_VISIT(open);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  for (PyObject*& held : self->members) Py_CLEAR(held);
  while (self->depth > 0) close(self);
  return 0;
}

void deallocate(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"handle", with_several<handle_in>(), METH_FASTCALL,
     "What replaces a tensor that will be recomputed: (tensor, how it is stored once recomputed). None for one that is "
     "kept."},
    {"running", running, METH_NOARGS,
     "The call that is running, as expected; None for none, or where nothing is followed."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef attributes[] = {
    {"last", T_OBJECT, Holder<FollowedCalls>::offset_of(FollowedCalls::kLast), READONLY, nullptr},
    {"replay", T_OBJECT, Holder<FollowedCalls>::offset_of(FollowedCalls::kReplay), 0, nullptr},
    {"at", T_PYSSIZET, offsetof(FollowedCalls, at), READONLY, nullptr},
    {"nodes", T_LONGLONG, offsetof(FollowedCalls, nodes), READONLY, nullptr},
    {"stopped", T_BOOL, offsetof(FollowedCalls, stopped), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(initialize)},
    {Py_tp_methods, methods},
    {Py_tp_members, attributes},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {0, nullptr},
};
PyType_Spec spec = {"actcore._native.FollowedCalls", sizeof(FollowedCalls), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

FollowedCalls* followed_of(PyObject* follower) {
  return PyObject_TypeCheck(follower, followed_type) ? reinterpret_cast<FollowedCalls*>(follower) : nullptr;
}

// Tells the follower that a call is over. The error stays, whatever comes of that.
void tell_failed(PyObject* follower) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Ref told(PyObject_CallMethodNoArgs(follower, follows->name_failed));
  PyErr_Restore(type, value, trace);
}

}  // namespace

std::unique_ptr<Follows> follows;

Follows::Follows(const py::dict& given)
    : tensor(type_in(given.ptr(), "Tensor")),
      parameter(type_in(given.ptr(), "Parameter")),
      expected(type_in(given.ptr(), "FollowedCall")),
      call(type_in(given.ptr(), "Call")),
      repeated_function(type_in(given.ptr(), "RepeatedFunction")),
      known_site(type_in(given.ptr(), "KnownSite")),
      method_wrapper(type_in(given.ptr(), "MethodWrapperType")),
      count_nodes(object_in(given.ptr(), "count_nodes")),
      grad_enabled(object_in(given.ptr(), "is_grad_enabled")),
      function_modes(object_in(given.ptr(), "function_modes")),
      dispatch_modes(object_in(given.ptr(), "dispatch_modes")),
      autocast_enabled(object_in(given.ptr(), "autocast_enabled")),
      get_autocast(object_in(given.ptr(), "get_autocast")),
      held(object_in(given.ptr(), "HELD")),
      elsewhere(object_in(given.ptr(), "ELSEWHERE")),
      scratch(object_in(given.ptr(), "SCRATCH")),
      function(expected, "function"),
      grad(expected, "grad"),
      before(expected, "before"),
      nodes(expected, "nodes"),
      random(expected, "random"),
      changed(expected, "changed"),
      results(expected, "results"),
      repeated(expected, "repeated"),
      made(expected, "made"),
      call_function(call, "function"),
      call_arguments(call, "arguments"),
      call_args(call, "_args"),
      call_kwargs(call, "_kwargs"),
      pattern(repeated_function, "pattern"),
      arguments(repeated_function, "arguments"),
      sharing(repeated_function, "sharing"),
      autocast(repeated_function, "autocast"),
      node(repeated_function, "node"),
      early(repeated_function, "early"),
      takes(repeated_function, "takes"),
      advances(repeated_function, "advances"),
      site(known_site, "site") {}

PyObject* running_call(FollowedCalls* self) {
  const bool is_open = self->depth > 0 && self->depth <= kDeepest && !self->stopped;
  return is_open ? self->open[self->depth - 1] : nullptr;
}

bool begin_followed(PyObject* follower, PyObject* call) {
  if (FollowedCalls* self = followed_of(follower)) return begin(self, call);
  return static_cast<bool>(Ref(PyObject_CallMethodOneArg(follower, follows->name_before, call)));
}

bool end_followed(PyObject* follower, PyObject* call, PyObject* outputs) {
  if (FollowedCalls* self = followed_of(follower)) {
    const bool done = end(self, call, outputs);
    close(self);
    return done;
  }
  PyObject* given[] = {follower, call, outputs};
  return static_cast<bool>(Ref(PyObject_VectorcallMethod(follows->name_after, given, 3, nullptr)));
}

void fail_followed(PyObject* follower) {
  tell_failed(follower);
  if (FollowedCalls* self = followed_of(follower)) close(self);
}

void bind_follow(py::module_& module) {
  module.def(
      "bind_follow", [](const py::dict& given) { follows = std::make_unique<Follows>(given); }, py::arg("given"),
      "Names the classes and functions that FollowedCalls knows.");
  followed_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  module.add_object("FollowedCalls", reinterpret_cast<PyObject*>(followed_type));
}

}  // namespace actcore
