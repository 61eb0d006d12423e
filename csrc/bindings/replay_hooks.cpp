// The saved-tensor hooks that torch calls: they go straight to the fast path where it is clear that a tensor is an
// ordinary one of eager code, and otherwise to Python.
#include "bindings/replay_hooks.h"

#include <cstddef>
#include <utility>

#include "bindings/replay_stores.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

// The pack hook of one session.
struct Pack {
  PyObject ob_base;
  enum Member {
    kReplay,  // the session's; None where each tensor goes the full way, or before the first
    kWhole,   // packs any tensor
    kAnew,    // packs one that is not as the forward before has saved it
    kMembers,
  };
  PyObject* members[kMembers];
};

PyObject* at(Pack* self, Pack::Member which) { return self->members[which]; }

PyTypeObject* pack_type = nullptr;
thread_local PyObject* innermost = nullptr;  // the Pack entered last in this thread
thread_local PyObject* watcher = nullptr;    // who is asked to unpack in this thread, in the place of this

// Whether nobody sees the calls that Python makes of torch's functions now.
bool is_unseen() {
  Ref modes(PyObject_CallNoArgs(known->torch_functions));
  if (!modes) go_on();
  return modes && PyLong_AsLong(modes.get()) == 0;
}

PyObject* pack(PyObject* object, PyObject* tensor) {
  Ref held = Ref::to(object);
  auto* self = reinterpret_cast<Pack*>(object);
  if (at(self, Pack::kReplay) == nullptr || !is_replayable(at(self, Pack::kReplay)) || !is_real(tensor) || !is_unseen())
    return PyObject_CallOneArg(at(self, Pack::kWhole), tensor);
  Ref replay = Ref::to(at(self, Pack::kReplay));
  Ref packed(replayed(replay.get(), tensor));
  if (!packed || packed.get() != Py_None) return packed.release();
  return PyObject_CallOneArg(at(self, Pack::kAnew), tensor);
}

PyObject* call_pack(PyObject* object, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) != 1 || (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a pack hook takes one tensor");
    return nullptr;
  }
  return pack(object, PyTuple_GET_ITEM(args, 0));
}

PyObject* create_pack(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *whole = nullptr, *anew = nullptr;
  if (kwargs != nullptr || !PyArg_ParseTuple(args, "OO", &whole, &anew)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Pack takes its two functions by place");
    return nullptr;
  }
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<Pack*>(made.get());
  self->members[Pack::kReplay] = Py_NewRef(Py_None);
  self->members[Pack::kWhole] = Py_NewRef(whole), self->members[Pack::kAnew] = Py_NewRef(anew);
  return made.release();
}

PyMemberDef pack_members[] = {
    {"replay", T_OBJECT, Holder<Pack>::offset_of(Pack::kReplay), 0, "The session's Replay; None where there is none."},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot pack_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_pack)},
    {Py_tp_call, reinterpret_cast<void*>(raising<call_pack, PyObject*, PyObject*, PyObject*>)},
    {Py_tp_members, pack_members},
    {Py_tp_traverse, reinterpret_cast<void*>(Holder<Pack>::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Holder<Pack>::clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Holder<Pack>::deallocate)},
    {0, nullptr},
};
PyType_Spec pack_spec = {"actcore._native.Pack", sizeof(Pack), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, pack_slots};

// ---- hooks that torch.compile inlines ----

// Whether the frames that the caller calls are neither compiled nor only run as they were compiled.
bool is_eager() {
  Ref callback(PyObject_CallNoArgs(known->compiles));
  if (!callback) go_on();
  return callback.get() == Py_None;
}

// Packs for the innermost session of the thread; `fallback` where something may be compiled.
PyObject* packed_eagerly(PyObject* fallback, PyObject* tensor) {
  if (innermost != nullptr && is_real(tensor) && is_eager()) {
    Ref tracing(PyObject_CallOneArg(known->dispatch_mode, known->proxy));
    if (!tracing) return nullptr;
    if (tracing.get() == Py_None) return pack(innermost, tensor);
  }
  return PyObject_CallOneArg(fallback, tensor);
}

// Notify Python that a backward with create_graph=True reads a tensor. Return false on an error.
bool told(PyObject* packed) {
  Ref builds(PyObject_CallNoArgs(known->grad_enabled));
  if (builds.get() != Py_True) return static_cast<bool>(builds);
  return static_cast<bool>(Ref(PyObject_CallOneArg(known->differentiated, packed)));
}

PyObject* unpack(PyObject*, PyObject* packed) {
  if (!told(packed)) return nullptr;
  Ref asked = Ref::to(watcher);
  return asked ? PyObject_CallOneArg(asked.get(), packed) : unpacked(packed);
}

PyObject* unpacked_eagerly(PyObject* fallback, PyObject* packed) {
  if (PyTuple_Check(packed) || PyList_Check(packed) || !is_eager()) return PyObject_CallOneArg(fallback, packed);
  return unpack(nullptr, packed);
}

PyObject* restore(PyObject*, PyObject* packed) {
  if (known != nullptr) return unpacked(packed);
  PyErr_SetString(PyExc_TypeError, "restore may be called after bind_replay");
  return nullptr;
}

PyMethodDef restoring = {"restore", with_one<restore>, METH_O,
                         "The tensor in whose place this is held: Kept, Beside, or another that has a method unpack."};
PyMethodDef packing = {"pack", with_one<packed_eagerly>, METH_O,
                       "Packs a tensor for the innermost session of the thread."};
PyMethodDef unpacking = {"unpack", with_one<unpacked_eagerly>, METH_O,
                         "The tensor in whose place autograd holds this."};
PyMethodDef plain_unpacking = {"unpack", with_one<unpack>, METH_O, "The tensor in whose place autograd holds this."};

// What stood in a place of the thread, with another object in it from now on; None empties it.
py::object exchanged(PyObject*& place, const py::object& other) {
  PyObject* before = std::exchange(place, other.is_none() ? nullptr : Py_NewRef(other.ptr()));
  return before == nullptr ? py::none() : py::reinterpret_steal<py::object>(before);
}

}  // namespace

void bind_hooks(py::module_& module) {
  pack_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&pack_spec));
  module.add_object("Pack", reinterpret_cast<PyObject*>(pack_type));
  module.add_object("restore", PyCFunction_New(&restoring, nullptr));
  module.add_object("unpack", PyCFunction_New(&plain_unpacking, nullptr));
  module.def(
      "packing",
      [](const py::object& fallback) {
        return py::reinterpret_steal<py::object>(PyCFunction_New(&packing, fallback.ptr()));
      },
      py::arg("fallback"), "A hook that packs for the innermost session of its thread, where nothing is compiled.");
  module.def(
      "unpacking",
      [](const py::object& fallback) {
        return py::reinterpret_steal<py::object>(PyCFunction_New(&unpacking, fallback.ptr()));
      },
      py::arg("fallback"), "A hook that unpacks, where nothing is compiled.");
  module.def(
      "enter",
      [](const py::object& other) {
        if (!other.is_none() && !Py_IS_TYPE(other.ptr(), pack_type)) throw py::type_error("enter takes a Pack or None");
        return exchanged(innermost, other);
      },
      py::arg("pack"), "Makes a Pack the innermost of the thread; returns the one that was.");
  module.def(
      "watch", [](const py::object& other) { return exchanged(watcher, other); }, py::arg("unpack"),
      "Has a function unpack in this thread, or None; returns the one that did.");
}

}  // namespace actcore
