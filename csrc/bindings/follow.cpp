// What integrations' CallFollower does of each call of a forward: it compares the function, its autograd nodes and its
// results with those that are expected, and gives the results their numbers. Calls of whose operators some are
// recomputed, and what differs, are left to its methods.
#include "bindings/follow.h"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

constexpr int kDeepest = 16;  // calls inside of each other

// The base class of CallFollower, whose attributes have these names in Python.
struct FollowedCalls {
  PyObject ob_base;
  PyObject* expected;  // a tuple of FollowedCall
  PyObject* values;    // a dict from addresses of storages to the values in them
  PyObject* last;      // the call that was over last; None before the first
  Py_ssize_t at;       // the place of the next
  long long nodes;     // how many autograd nodes there were at the last event
  char stopped;        // whether nothing is followed any more
  int depth;
  PyObject* open[kDeepest];   // the calls that are running; null for one that is another than expected
  long long begun[kDeepest];  // how many nodes there were when they began
};

PyTypeObject* followed_type = nullptr;

// The classes and functions of Python that this knows.
struct Known {
  explicit Known(const py::dict& given)
      : tensor(type_of(given, "Tensor")),
        parameter(type_of(given, "Parameter")),
        expected(type_of(given, "FollowedCall")),
        call(type_of(given, "Call")),
        count_nodes(Py_NewRef(given["count_nodes"].ptr())),
        grad_enabled(Py_NewRef(given["is_grad_enabled"].ptr())),
        function(expected, "function"),
        grad(expected, "grad"),
        before(expected, "before"),
        nodes(expected, "nodes"),
        random(expected, "random"),
        changed(expected, "changed"),
        results(expected, "results"),
        repeated(expected, "repeated"),
        call_function(call, "function") {}

  static PyTypeObject* type_of(const py::dict& given, const char* name) {
    PyObject* found = given[name].ptr();
    if (!PyType_Check(found)) throw std::invalid_argument(std::string(name) + " must be a class");
    return reinterpret_cast<PyTypeObject*>(Py_NewRef(found));
  }

  PyTypeObject *tensor, *parameter, *expected, *call;
  PyObject *count_nodes, *grad_enabled;
  Field function, grad, before, nodes, random, changed, results, repeated, call_function;
  PyObject* name_before = PyUnicode_InternFromString("before");
  PyObject* name_after = PyUnicode_InternFromString("after");
  PyObject* name_failed = PyUnicode_InternFromString("failed");
  PyObject* name_begin = PyUnicode_InternFromString("begin");
  PyObject* name_end = PyUnicode_InternFromString("end");
  PyObject* name_differs = PyUnicode_InternFromString("differs");
  PyObject* name_returns = PyUnicode_InternFromString("returns");
  PyObject* name_shape = PyUnicode_InternFromString("shape");
  PyObject* name_dtype = PyUnicode_InternFromString("dtype");
  PyObject* name_untyped_storage = PyUnicode_InternFromString("untyped_storage");
  PyObject* name_cdata = PyUnicode_InternFromString("_cdata");
  PyObject* name_weak_ref = PyUnicode_InternFromString("_weak_ref");
};

std::unique_ptr<Known> known;

// How many autograd nodes this thread has made. -1: an error.
long long count_nodes() {
  Ref count(PyObject_CallNoArgs(known->count_nodes));
  return count ? PyLong_AsLongLong(count.get()) : -1;
}

bool is_same_count(PyObject* expected, long long count) { return PyLong_AsLongLong(expected) == count; }

// Tells the follower that a call differs, or in which way what it has returned does.
bool differs(FollowedCalls* self, PyObject* call, const char* how) {
  Ref text(PyUnicode_FromString(how));
  PyObject* given[] = {&self->ob_base, call, text.get()};
  return text && Ref(PyObject_VectorcallMethod(known->name_differs, given, 3, nullptr));
}

// Whether the follower's Python methods have to handle a call, too.
bool is_more(PyObject* expected) {
  PyObject* changed = known->changed.of(expected);
  return known->repeated.of(expected) != Py_None || known->random.of(expected) == Py_True ||
         (PyTuple_Check(changed) && PyTuple_GET_SIZE(changed) != 0);
}

// Whether a function is the expected one. Each read of a property makes a new method-wrapper.
bool is_function(PyObject* expected, PyObject* function) {
  if (expected == function) return true;
  if (!Py_IS_TYPE(function, &_PyMethodWrapper_Type) || !Py_IS_TYPE(expected, &_PyMethodWrapper_Type)) return false;
  return PyObject_RichCompareBool(expected, function, Py_EQ) == 1;
}

bool begin(FollowedCalls* self, PyObject* call) {
  const int place = self->depth++;
  if (self->stopped) return true;
  if (self->expected == nullptr) {
    PyErr_SetString(PyExc_TypeError, "FollowedCalls must be initialized");
    return false;
  }
  if (place >= kDeepest) return differs(self, call, "");
  const long long nodes = count_nodes();
  Ref grad(PyObject_CallNoArgs(known->grad_enabled));
  if (nodes < 0 || !grad) return false;
  const bool more = self->at < PyTuple_GET_SIZE(self->expected);
  Ref expected = Ref::to(more ? PyTuple_GET_ITEM(self->expected, self->at) : nullptr);
  const bool same = expected && is_function(known->function.of(expected.get()), known->call_function.of(call)) &&
                    known->grad.of(expected.get()) == grad.get() &&
                    is_same_count(known->before.of(expected.get()), nodes - self->nodes);
  if (PyErr_Occurred()) return false;
  if (!same) return differs(self, call, "");
  ++self->at;
  self->nodes = self->begun[place] = nodes;
  self->open[place] = Py_NewRef(expected.get());
  if (!is_more(expected.get())) return true;
  PyObject* given[] = {&self->ob_base, expected.get(), call};
  if (!Ref(PyObject_VectorcallMethod(known->name_begin, given, 3, nullptr))) return false;
  self->nodes = self->begun[place] = count_nodes();  // it may have made some
  return self->nodes >= 0;
}

// Whether a result is the expected one; gives it its value if it has new memory. -1: Python has to decide, or there is an error.
int returns_one(FollowedCalls* self, PyObject* output, PyObject* result) {
  if (!Py_IS_TYPE(output, known->tensor) && !Py_IS_TYPE(output, known->parameter)) return -1;
  PyObject *value = PyTuple_GET_ITEM(result, 0), *is_new = PyTuple_GET_ITEM(result, 1);
  if (!has(output, known->name_dtype, PyTuple_GET_ITEM(result, 3))) return -1;
  Ref shape = attribute(output, known->name_shape);
  if (!shape || PyObject_RichCompareBool(shape.get(), PyTuple_GET_ITEM(result, 2), Py_EQ) != 1) return -1;
  Ref storage = called(output, known->name_untyped_storage);
  Ref address = storage ? attribute(storage.get(), known->name_cdata) : Ref();
  if (!address) return -1;
  PyObject* there = PyDict_GetItemWithError(self->values, address.get());
  if (there == nullptr) {
    if (is_new != Py_True) return value == Py_None;
    if (PyDict_GET_SIZE(self->values) >= kRoom) return -1;
    Ref counted = called(storage.get(), known->name_weak_ref);  // the map gives it back
    return counted && PyDict_SetItem(self->values, address.get(), value) == 0 ? 1 : -1;
  }
  return PyObject_RichCompareBool(there, value, Py_EQ);
}

// Whether a call has returned what is expected. -1: an error.
int returns(FollowedCalls* self, PyObject* expected, PyObject* outputs) {
  PyObject* results = known->results.of(expected);
  bool done = PyTuple_CheckExact(results) && PyList_CheckExact(outputs) &&
              PyTuple_GET_SIZE(results) == PyList_GET_SIZE(outputs);
  for (Py_ssize_t i = 0; done && i < PyTuple_GET_SIZE(results); ++i)
    done = returns_one(self, PyList_GET_ITEM(outputs, i), PyTuple_GET_ITEM(results, i)) == 1;
  if (done) return 1;
  if (PyErr_Occurred() && !cannot_tell()) return -1;
  PyObject* given[] = {&self->ob_base, expected, outputs};
  Ref told(PyObject_VectorcallMethod(known->name_returns, given, 3, nullptr));
  return told ? told.get() == Py_True : -1;
}

// Does what there is to do of a call that has returned, while it is still among those that are running.
bool end(FollowedCalls* self, PyObject* call, PyObject* outputs) {
  const int place = self->depth - 1;
  Ref expected = Ref::to(place < 0 || place >= kDeepest ? nullptr : self->open[place]);
  if (!expected || self->stopped) return true;
  const long long nodes = count_nodes();
  if (nodes < 0) return false;
  const bool same_nodes = is_same_count(known->nodes.of(expected.get()), nodes - self->begun[place]);
  if (PyErr_Occurred()) return false;
  if (!same_nodes && is_more(expected.get())) return differs(self, call, " with other autograd nodes");
  if (is_more(expected.get())) {
    PyObject* given[] = {&self->ob_base, expected.get(), call, outputs};
    if (!Ref(PyObject_VectorcallMethod(known->name_end, given, 4, nullptr))) return false;
  } else {
    const int same = returns(self, expected.get(), outputs);
    if (same < 0 || (same == 0 && !differs(self, call, " with other results"))) return false;
  }
  if (self->stopped) return true;
  Py_XSETREF(self->last, expected.release());
  self->nodes = count_nodes();
  return self->nodes >= 0 && (same_nodes || differs(self, call, ""));
}

// Takes the call that is over from those that are running.
void close(FollowedCalls* self) {
  if (self->depth == 0) return;
  --self->depth;
  if (self->depth < kDeepest) Py_CLEAR(self->open[self->depth]);
}

PyObject* compare(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  if (count != 2 || known == nullptr || !Py_IS_TYPE(given[0], known->expected)) {
    PyErr_SetString(PyExc_TypeError, "compare takes a FollowedCall and the tensors that a call has returned");
    return nullptr;
  }
  const int same = returns(reinterpret_cast<FollowedCalls*>(object), given[0], given[1]);
  return same < 0 ? nullptr : PyBool_FromLong(same);
}

PyObject* running(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  const bool is_open = self->depth > 0 && self->depth <= kDeepest && !self->stopped;
  PyObject* found = is_open ? self->open[self->depth - 1] : nullptr;
  return Py_NewRef(found == nullptr ? Py_None : found);
}

int initialize(PyObject* object, PyObject* args, PyObject* kwargs) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  PyObject *expected = nullptr, *values = nullptr;
  if (known == nullptr || kwargs != nullptr ||
      !PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &expected, &PyDict_Type, &values)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "FollowedCalls takes calls and values by place, after bind_follow");
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i)
    if (!Py_IS_TYPE(PyTuple_GET_ITEM(expected, i), known->expected)) {
      PyErr_Format(PyExc_TypeError, "calls must be FollowedCall, got %R", PyTuple_GET_ITEM(expected, i));
      return -1;
    }
  Py_XSETREF(self->expected, Py_NewRef(expected));
  Py_XSETREF(self->values, Py_NewRef(values));
  Py_XSETREF(self->last, Py_NewRef(Py_None));
  self->at = 0, self->stopped = 0;
  self->nodes = count_nodes();
  return self->nodes < 0 ? -1 : 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->expected);
  Py_VISIT(self->values);
  Py_VISIT(self->last);
  for (PyObject* open : self->open) Py_VISIT(open);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  Py_CLEAR(self->expected);
  Py_CLEAR(self->values);
  Py_CLEAR(self->last);
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
    {"compare", with_several<compare>(), METH_FASTCALL,
     "Whether a call has returned what is expected: (FollowedCall, tensors). Gives those their values that are new."},
    {"running", running, METH_NOARGS,
     "The call that is running, as expected; None for none, or where nothing is followed."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef attributes[] = {
    {"last", T_OBJECT, offsetof(FollowedCalls, last), READONLY, nullptr},
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
  Ref told(PyObject_CallMethodNoArgs(follower, known->name_failed));
  PyErr_Restore(type, value, trace);
}

}  // namespace

bool begin_followed(PyObject* follower, PyObject* call) {
  if (FollowedCalls* self = followed_of(follower)) return begin(self, call);
  return static_cast<bool>(Ref(PyObject_CallMethodOneArg(follower, known->name_before, call)));
}

bool end_followed(PyObject* follower, PyObject* call, PyObject* outputs) {
  if (FollowedCalls* self = followed_of(follower)) {
    const bool done = end(self, call, outputs);
    close(self);
    return done;
  }
  PyObject* given[] = {follower, call, outputs};
  return static_cast<bool>(Ref(PyObject_VectorcallMethod(known->name_after, given, 3, nullptr)));
}

void fail_followed(PyObject* follower) {
  tell_failed(follower);
  if (FollowedCalls* self = followed_of(follower)) close(self);
}

void bind_follow(py::module_& module) {
  module.def(
      "bind_follow", [](const py::dict& given) { known = std::make_unique<Known>(given); }, py::arg("given"),
      "Names the classes and functions that FollowedCalls knows.");
  followed_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  module.add_object("FollowedCalls", reinterpret_cast<PyObject*>(followed_type));
}

}  // namespace actcore
