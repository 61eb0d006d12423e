// The classes that segments and their handles have in Python.
#include <cstddef>
#include <memory>

#include "bindings/repeats.h"
#include "bindings/segments.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {

PyTypeObject *segment_type = nullptr, *handle_type = nullptr;

namespace {

constexpr const char* kSegmentMembers[Segment::kMembers] = {"model",    "double",  "rounded",  "calls",   "given",
                                                            "programs", "becomes", "handles",  "waiting", "stored",
                                                            "made",     "seen",    "released", "lock"};

int initialize_segment(PyObject* object, PyObject* args, PyObject* kwargs) {
  auto* self = reinterpret_cast<Segment*>(object);
  PyObject *model = Py_None, *doubled = Py_None, *rounded = Py_False, *calls = nullptr, *programs = Py_None;
  Py_ssize_t count = 0;
  if (repeats == nullptr || kwargs != nullptr ||
      !PyArg_ParseTuple(args, "|OOOOnO", &model, &doubled, &rounded, &calls, &count, &programs)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "RepeatedSegment takes what it goes by by place, after bind_segments");
    return -1;
  }
  Ref given(PyList_New(count)), lock(PyObject_CallNoArgs(repeats->make_lock));
  if (!given || !lock) return -1;
  for (Py_ssize_t i = 0; i < count; ++i) PyList_SET_ITEM(given.get(), i, Py_NewRef(Py_None));
  const auto set = [&](Segment::Member which, PyObject* value) { Py_XSETREF(self->members[which], value); };
  set(Segment::kModel, Py_NewRef(model)), set(Segment::kDouble, Py_NewRef(doubled));
  set(Segment::kRounded, Py_NewRef(rounded)), set(Segment::kPrograms, Py_NewRef(programs));
  set(Segment::kCalls, calls == nullptr ? PyList_New(0) : Py_NewRef(calls)), set(Segment::kGiven, given.release());
  set(Segment::kLock, lock.release()), set(Segment::kReleased, PyList_New(0));
  if (self->members[Segment::kReleased] != nullptr) untrack(self->members[Segment::kReleased]);  // it has numbers alone
  for (const Segment::Member which :
       {Segment::kBecomes, Segment::kHandles, Segment::kWaiting, Segment::kStored, Segment::kMade, Segment::kSeen})
    set(which, PyDict_New());
  self->done = 0, self->uses = 0;
  return PyErr_Occurred() ? -1 : 0;
}

PyObject* advance_segment(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  Segment* self = segment_of(object);
  if (self == nullptr || count < 1 || count > 2 || (count == 2 && !PyTuple_Check(given[1]))) {
    PyErr_SetString(PyExc_TypeError, "advance takes a number of calls and a tuple of changes, of a segment with calls");
    return nullptr;
  }
  const Py_ssize_t done = PyLong_AsSsize_t(given[0]);
  if (PyErr_Occurred() || !advance(self, done, count == 2 ? given[1] : nullptr)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* create_handle(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"segment", "value", "tensor", "later", "shares", nullptr};
  PyObject *segment = nullptr, *value = nullptr, *tensor = nullptr, *later = Py_None;
  int shares = 0;
  if (repeats == nullptr) {
    PyErr_SetString(PyExc_TypeError, "Handle may be made after bind_segments");
    return nullptr;
  }
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|Op", const_cast<char**>(names), &segment, &value, &tensor, &later,
                                   &shares))
    return nullptr;
  return handle_of(segment, value, tensor, later, shares != 0).release();
}

void finalize_handle(PyObject* object) {
  auto* self = reinterpret_cast<Handle*>(object);
  if (!self->held) return;
  self->held = 0;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  let_go(self);
  PyErr_Restore(type, value, trace);
}

void deallocate_handle(PyObject* object) {
  if (PyObject_CallFinalizerFromDealloc(object) < 0) return;
  auto* self = reinterpret_cast<Handle*>(object);
  if (self->weak != nullptr) PyObject_ClearWeakRefs(object);
  Holder<Handle>::deallocate(object);
}

bool is_unchanged(Handle* self) {
  PyObject* version = at(self, Handle::kVersion);
  if (version == nullptr) return true;  // that of one which the collector has cleared: it has no segment
  Ref now = attribute(repeats->version_counter.of(version), known->names._version);
  if (!now) return false;
  if (PyObject_RichCompareBool(now.get(), repeats->version_found.of(version), Py_EQ) == 1) return true;
  return static_cast<bool>(Ref(PyObject_CallMethodOneArg(version, repeats->check, at(self, Handle::kGeometry))));
}

PyObject* unpack_handle(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Handle*>(object);
  return is_unchanged(self) ? get(self).release() : nullptr;
}

PyObject* get_handle(PyObject* object, PyObject*) { return get(reinterpret_cast<Handle*>(object)).release(); }

PyObject* prepare_handle(PyObject* object, PyObject*) {
  return prepare(reinterpret_cast<Handle*>(object)) ? Py_NewRef(Py_None) : nullptr;
}

PyMethodDef segment_methods[] = {
    {"advance", with_several<advance_segment>(), METH_FASTCALL,
     "Notes how many of the calls have run, and the values that the last of them have overwritten, with what these "
     "became."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef segment_members[Segment::kMembers + 2] = {};  // by their names

PyType_Slot segment_slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(initialize_segment)},
    {Py_tp_methods, segment_methods},
    {Py_tp_members, segment_members},
    {Py_tp_traverse, reinterpret_cast<void*>(Holder<Segment>::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Holder<Segment>::clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Holder<Segment>::deallocate)},
    {0, nullptr},
};
PyType_Spec segment_spec = {"actcore._native.RepeatedSegment", sizeof(Segment), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, segment_slots};

PyMethodDef handle_methods[] = {
    {"unpack", with_one<unpack_handle>, METH_NOARGS, "The tensor. Raises an error if it was changed since."},
    {"get", with_one<get_handle>, METH_NOARGS, "The tensor, whatever was written into it since."},
    {"prepare", with_one<prepare_handle>, METH_NOARGS, "Has the segment recompute it."},
    {nullptr, nullptr, 0, nullptr},
};
PyMemberDef handle_members[] = {
    {"segment", T_OBJECT, Holder<Handle>::offset_of(Handle::kSegment), READONLY, nullptr},
    {"value", T_OBJECT, Holder<Handle>::offset_of(Handle::kValue), READONLY, nullptr},
    {"geometry", T_OBJECT, Holder<Handle>::offset_of(Handle::kGeometry), READONLY, nullptr},
    {"later", T_OBJECT, Holder<Handle>::offset_of(Handle::kLater), READONLY,
     "How the tensor is stored once recomputed; None: it waits as it is until it is read."},
    {"stored", T_OBJECT, Holder<Handle>::offset_of(Handle::kStored), 0,
     "The form that was made of it once it was recomputed; None for none."},
    {"shares", T_BOOL, offsetof(Handle, shares), READONLY,
     "Whether it is read from the form that another handle of the same geometry stores."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Handle, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot handle_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_handle)},
    {Py_tp_methods, handle_methods},
    {Py_tp_members, handle_members},
    {Py_tp_traverse, reinterpret_cast<void*>(Holder<Handle>::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Holder<Handle>::clear)},
    {Py_tp_finalize, reinterpret_cast<void*>(finalize_handle)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_handle)},
    {0, nullptr},
};
PyType_Spec handle_spec = {"actcore._native.Handle", sizeof(Handle), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           handle_slots};

}  // namespace

void bind_segments(py::module_& module) {
  const auto is_writable = [](int member) {  // by methods in Python
    return member == Segment::kCalls || member == Segment::kGiven || member == Segment::kPrograms;
  };
  for (int i = 0; i < Segment::kMembers; ++i)
    segment_members[i] = {kSegmentMembers[i], T_OBJECT, Holder<Segment>::offset_of(i), is_writable(i) ? 0 : READONLY,
                          nullptr};
  segment_members[Segment::kMembers] = {"done", T_PYSSIZET, offsetof(Segment, done), READONLY, nullptr};
  segment_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&segment_spec));
  handle_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&handle_spec));
  module.add_object("RepeatedSegment", reinterpret_cast<PyObject*>(segment_type));
  module.add_object("Handle", reinterpret_cast<PyObject*>(handle_type));
  module.def(
      "bind_segments", [](const py::dict& given) { repeats = std::make_unique<Repeats>(given); }, py::arg("given"),
      "Names the classes and functions that RepeatedSegment and Handle know.");
}

}  // namespace actcore
