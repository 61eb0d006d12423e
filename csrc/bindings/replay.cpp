// The fast path of integrations' runtime: a saved tensor that is the one that the forward before saved at this place is
// stored as that was. All that its store follows from is compared here, field by field; what differs, and what is more
// than one codec's call, goes the full way, in Python. integrations/runtime/replay.py says what the objects are.
#include "bindings/replay.h"

#include "bindings/calls.h"
#include "bindings/frames.h"
#include "bindings/replay_stores.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

PyTypeObject* replay_type = nullptr;

// The same of what code in Python says, whose errors stay set, but for those that say that it cannot tell.
bool is_told(Ref found, PyObject* expected) {
  if (!found) {
    cannot_tell();
    return false;
  }
  return is_same(std::move(found), expected);
}

// Whether the tensor is to the call what the site says.
bool plays_role(PyObject* site, PyObject* call, PyObject* tensor, PyObject* storage, PyObject* address) {
  PyObject* role = known->site_role.of(site);
  PyObject* arguments = known->call_arguments.of(call);
  bool told = known->call_recomputes.of(call) == Py_False && PyList_CheckExact(arguments);
  const Py_ssize_t count = told ? PyList_GET_SIZE(arguments) : 0;
  Py_ssize_t position = -1;
  for (Py_ssize_t i = 0; told && position < 0 && i < count; ++i) {
    PyObject* argument = PyList_GET_ITEM(arguments, i);
    if (argument == tensor) {
      position = i;
    } else if (is_real(argument)) {
      Ref own;
      Ref other = address_of(argument, &own);
      told = static_cast<bool>(other);
      if (told && PyObject_RichCompareBool(other.get(), address, Py_EQ) == 1) position = i;
    } else {
      told = false;
    }
  }
  if (!told) {
    PyObject* given[] = {call, tensor, storage};
    return is_told(Ref(PyObject_VectorcallMethod(known->names.role, given, 3, nullptr)), role);
  }
  if (position >= 0) return PyUnicode_CompareWithASCIIString(role, position == 0 ? "input" : "other") == 0;
  Ref leaf = attribute(tensor, known->names.is_leaf);
  if (!leaf) go_on();  // a view that autograd cannot follow has a history
  return PyUnicode_CompareWithASCIIString(role, leaf.get() == Py_True ? "internal" : "result") == 0;
}

// Whether the tensor is described as that of the site.
bool fits(PyObject* site, PyObject* tensor) {
  const Names& names = known->names;
  return has(tensor, names.dtype, known->site_dtype.of(site)) &&
         is_same(attribute(tensor, names.shape), known->site_shape.of(site)) &&
         is_same(called(tensor, names.stride), known->site_strides.of(site)) &&
         is_same(attribute(tensor, names.requires_grad), known->site_requires_grad.of(site)) &&
         is_same(attribute(tensor, names.device), known->site_device.of(site));
}

// Who keeps the tensor alive besides autograd: a text, empty for nobody; null with an error.
Ref owner_of(Replay* self, PyObject* call, PyObject* tensor, PyObject* storage, PyObject* address) {
  PyObject* holder = PyDict_GetItemWithError(at(self, Replay::kHolders), address);
  if (holder != nullptr) return Ref::to(holder);
  if (PyDict_Contains(at(self, Replay::kForeign), address) == 1) return Ref::to(known->before);
  Ref base = attribute(tensor, known->names._base);
  if (!base) go_on();
  PyObject* root = base && base.get() != Py_None ? base.get() : tensor;
  if (Py_IS_TYPE(root, known->tensor) && has(root, known->names.dtype, at(self, Replay::kDtype)))
    return Ref(PyUnicode_InternFromString(""));
  PyObject* given[] = {tensor, storage, call};
  return Ref(PyObject_Vectorcall(at(self, Replay::kOwner), given, 3, nullptr));
}

// Whether the call is given the argument by which the forward before has decided, and whether what else was decided by
// its arguments would be decided so again.
bool is_given(PyObject* site, PyObject* call) {
  PyObject* still = known->site_still.of(site);
  if (still != Py_None && !is_told(Ref(PyObject_CallOneArg(still, call)), Py_True)) return false;
  PyObject* given = known->site_given.of(site);
  if (given == Py_None) return true;
  const Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, 0));
  PyObject *args = known->call_args.of(call), *kwargs = known->call_kwargs.of(call), *found = nullptr;
  if (!PyTuple_Check(args) || !PyDict_Check(kwargs)) return false;
  if (position < PyTuple_GET_SIZE(args)) {
    found = PyTuple_GET_ITEM(args, position);
  } else {
    found = PyDict_GetItemWithError(kwargs, PyTuple_GET_ITEM(given, 1));
  }
  return is_same(Ref::to(found == nullptr ? Py_None : found), PyTuple_GET_ITEM(given, 2));
}

// Whether a tensor in memory to which the plan has given no number so far is the one of the site. It may be what the call
// that is running has made: whoever follows the calls tells. -1: an error.
int is_met(Replay* self, PyObject* site, PyObject* storage, PyObject* tensor) {
  PyObject* value = known->site_value.of(site);
  if (value == Py_None) return 1;
  PyObject *role = known->site_role.of(site), *meet = at(self, Replay::kMeet);
  const bool made =
      PyUnicode_CompareWithASCIIString(role, "internal") == 0 || PyUnicode_CompareWithASCIIString(role, "result") == 0;
  if (!made || meet == Py_None) return 0;
  PyObject* given[] = {storage, value, tensor};
  Ref met(PyObject_Vectorcall(meet, given, 3, nullptr));
  return met ? met.get() == Py_True : -1;
}

// Whether a CUDA graph is captured, which draws its noise on the device. -1: an error.
int is_captured(Replay* self) {
  Ref capturing(PyObject_CallNoArgs(at(self, Replay::kCapturing)));
  return capturing ? capturing.get() != Py_False : -1;
}

// What a tensor gets that is another one: the full way, or an error.
PyObject* left_to_python() { return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None); }

}  // namespace

bool is_replayable(PyObject* object) {
  if (!Py_IS_TYPE(object, replay_type)) return false;
  PyObject* tracker = at(reinterpret_cast<Replay*>(object), Replay::kTracker);
  PyObject* call = reinterpret_cast<Calls*>(tracker)->members[Calls::kCall];
  if (call == nullptr || !Py_IS_TYPE(call, known->call)) return true;
  PyObject* arguments = known->call_arguments.of(call);
  if (!PyList_CheckExact(arguments)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments); ++i)
    if (!is_real(PyList_GET_ITEM(arguments, i))) return false;
  return true;
}

PyObject* replayed(PyObject* object, PyObject* tensor) {
  auto* self = reinterpret_cast<Replay*>(object);
  Ref site = Ref::to(at(self, Replay::kExpected));
  if (site.get() == Py_None || !is_real(tensor)) Py_RETURN_NONE;
  Ref call = Ref::to(reinterpret_cast<Calls*>(at(self, Replay::kTracker))->members[Calls::kCall]);
  if (!call) Py_RETURN_NONE;
  if (!Py_IS_TYPE(call.get(), known->call)) Py_RETURN_NONE;
  if (known->call_function.of(call.get()) != known->site_function.of(site.get())) Py_RETURN_NONE;
  if (!fits(site.get(), tensor) || !is_given(site.get(), call.get())) return left_to_python();
  PyObject* module = known->call_module.of(call.get());
  if (module == Py_None) {
    Ref caller = Ref::to(known->site_caller.of(site.get()));
    const bool same = PyWeakref_CheckRef(caller.get()) && is_innermost(object_of(caller.get()).get(), known->calling);
    Ref found = same ? Ref::to(known->site_module.of(site.get())) : Ref(PyObject_CallNoArgs(at(self, Replay::kModule)));
    if (!found) return nullptr;
    known->call_module.set(call.get(), std::move(found));
    module = known->call_module.of(call.get());
  }
  if (!is_same(Ref::to(module), known->site_module.of(site.get()))) Py_RETURN_NONE;
  Ref storage;
  Ref address = address_of(tensor, &storage);
  if (!address || !plays_role(site.get(), call.get(), tensor, storage.get(), address.get())) return left_to_python();
  PyObject* place = known->site_place.of(site.get());
  PyObject* before = PyDict_GetItemWithError(at(self, Replay::kOccurrences), place);
  PyObject* occurrence = known->site_occurrence.of(site.get());
  if (before == nullptr ? PyLong_AsLong(occurrence) != 0 : !is_same(Ref::to(before), occurrence)) Py_RETURN_NONE;
  const bool owned = PyUnicode_GetLength(known->site_owner.of(site.get())) != 0;
  if (!owned && at(self, Replay::kValues) != Py_None) {  // before its owner, which follows from that
    PyObject* value = PyDict_GetItemWithError(at(self, Replay::kValues), address.get());
    const int same = value == nullptr ? is_met(self, site.get(), storage.get(), tensor)
                                      : is_same(Ref::to(value), known->site_value.of(site.get()));
    if (same <= 0) return left_to_python();
  }
  Ref owner = owner_of(self, call.get(), tensor, storage.get(), address.get());
  if (!owner) return nullptr;
  if (!is_same(Ref::to(owner.get()), known->site_owner.of(site.get()))) Py_RETURN_NONE;
  if (PyDict_GET_SIZE(at(self, Replay::kDue)) != 0) Py_RETURN_NONE;
  if (!owned && PyDict_Contains(at(self, Replay::kExposed), address.get()) != 0) Py_RETURN_NONE;
  const int captured = is_captured(self);
  if (captured < 0) return nullptr;
  if (captured) Py_RETURN_NONE;
  // It is the same.
  if (PyDict_SetItem(at(self, Replay::kOccurrences), place, known->site_following.of(site.get())) < 0) return nullptr;
  PyObject* next = known->site_next.of(site.get());
  Py_SETREF(self->members[Replay::kExpected], Py_NewRef(next));
  Py_SETREF(self->members[Replay::kLast], Py_NewRef(site.get()));
  if (owned) {
    if (PyList_Append(at(self, Replay::kRecords), known->site_record.of(site.get())) < 0) return nullptr;
    return kept_of(tensor).release();
  }
  Ref held = stored_here(self, site.get(), tensor, storage.get(), address.get());
  if (held.get() != Py_None) return held.release();
  PyObject* given[] = {tensor, storage.get(), known->site_spec.of(site.get()), call.get(), site.get()};
  return PyObject_Vectorcall(at(self, Replay::kStore), given, 5, nullptr);
}

Ref hold_as_before(PyObject* replay, PyObject* site, PyObject* tensor) {
  auto* self = reinterpret_cast<Replay*>(replay);
  if (!is_real(tensor) || !fits(site, tensor)) return Ref(left_to_python());
  Ref storage;
  Ref address = address_of(tensor, &storage);
  if (!address) return Ref::to(Py_None);
  PyObject* place = known->site_place.of(site);
  PyObject* before = PyDict_GetItemWithError(at(self, Replay::kOccurrences), place);
  PyObject* occurrence = known->site_occurrence.of(site);
  if (before == nullptr ? PyLong_AsLong(occurrence) != 0 : !is_same(Ref::to(before), occurrence))
    return Ref::to(Py_None);
  Ref owner = owner_of(self, Py_None, tensor, storage.get(), address.get());
  if (!owner) return Ref();
  if (!is_same(Ref::to(owner.get()), known->site_owner.of(site))) return Ref::to(Py_None);
  if (PyDict_GET_SIZE(at(self, Replay::kDue)) != 0) return Ref::to(Py_None);
  const int captured = is_captured(self);
  if (captured != 0) return captured < 0 ? Ref() : Ref::to(Py_None);
  Ref held;
  if (PyUnicode_GetLength(owner.get()) != 0) {
    held = kept_of(tensor);
    if (held && PyList_Append(at(self, Replay::kRecords), known->site_record.of(site)) < 0) return Ref();
  } else {
    if (PyDict_Contains(at(self, Replay::kExposed), address.get()) != 0) return Ref::to(Py_None);
    held = stored_here(self, site, tensor, storage.get(), address.get());
  }
  if (held && held.get() != Py_None &&
      PyDict_SetItem(at(self, Replay::kOccurrences), place, known->site_following.of(site)) < 0)
    return Ref();
  return held;
}

bool count_as_unsaved(PyObject* replay) {
  PyObject* records = at(reinterpret_cast<Replay*>(replay), Replay::kRecords);
  const Py_ssize_t count = PyList_GET_SIZE(records);
  if (count != 0) known->record_original.set(PyList_GET_ITEM(records, count - 1), Ref(PyLong_FromLong(0)));
  return !PyErr_Occurred();
}

namespace {

// The site of a tensor that went the full way: the one after it is expected to be the one that came then.
PyObject* note(PyObject* object, PyObject* site) {
  auto* self = reinterpret_cast<Replay*>(object);
  if (!Py_IS_TYPE(site, known->site)) {
    PyErr_Format(PyExc_TypeError, "site must be a Site, got %R", site);
    return nullptr;
  }
  PyObject* last = at(self, Replay::kLast);
  const bool first = last == Py_None;
  if (!first) known->site_next.set(last, Ref::to(site));
  Py_SETREF(self->members[Replay::kLast], Py_NewRef(site));
  Py_SETREF(self->members[Replay::kExpected], Py_NewRef(known->site_next.of(site)));
  return PyBool_FromLong(first);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (known == nullptr || PyTuple_GET_SIZE(args) != 0 || kwargs == nullptr) {
    PyErr_SetString(PyExc_TypeError, "Replay takes what it goes by, by name, after bind_replay");
    return nullptr;
  }
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<Replay*>(made.get());
  for (int i = 0; i < Replay::kMembers; ++i) {
    PyObject* given = i < Replay::kGiven ? PyDict_GetItemString(kwargs, kNames[i]) : Py_None;
    if (i == Replay::kExpected) given = PyDict_GetItemString(kwargs, "first");
    if (given == nullptr) {
      PyErr_Format(PyExc_TypeError, "Replay must be given %s", i < Replay::kGiven ? kNames[i] : "first");
      return nullptr;
    }
    self->members[i] = Py_NewRef(given);
  }
  if (!is_calls(at(self, Replay::kTracker))) {
    PyErr_SetString(PyExc_TypeError, "tracker must be a CallTracker");
    return nullptr;
  }
  PyObject* step = PyDict_GetItemString(kwargs, "step");
  self->step = step == nullptr ? 0 : PyLong_AsUnsignedLongLong(step);
  return PyErr_Occurred() ? nullptr : made.release();
}

PyObject* hold(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  if (count == 2 && Py_IS_TYPE(given[0], known->site)) return hold_as_before(object, given[0], given[1]).release();
  PyErr_SetString(PyExc_TypeError, "hold takes a Site and a tensor");
  return nullptr;
}

PyMethodDef methods[] = {
    {"hold", with_several<hold>(), METH_FASTCALL,
     "Stores a tensor that is held for a repetition as its site says: (site, tensor); None if it is another one."},
    {"pack", with_one<replayed>, METH_O, "Stores a tensor as the forward before has; None if it is another one."},
    {"note", note, METH_O,
     "Notes the site of a tensor that went the full way; whether it is the first of the forward."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_methods, methods},
    {Py_tp_traverse, reinterpret_cast<void*>(Holder<Replay>::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Holder<Replay>::clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Holder<Replay>::deallocate)},
    {0, nullptr},
};
PyType_Spec spec = {"actcore._native.Replay", sizeof(Replay), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

void bind_replay(py::module_& module) {
  module.def(
      "bind_replay", [](const py::dict& given) { known = std::make_unique<Known>(given); }, py::arg("given"),
      "Names the classes and functions that Replay and the hooks know.");
  replay_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  module.add_object("Replay", reinterpret_cast<PyObject*>(replay_type));
}

}  // namespace actcore
