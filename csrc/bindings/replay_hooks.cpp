// The saved-tensor hooks that torch calls: they go straight to the fast path where it is clear that a tensor is an
// ordinary one of eager code, and otherwise to Python.
#include "bindings/replay_hooks.h"

#include <cstddef>
#include <utility>

#include "bindings/replay_stores.h"

namespace py = pybind11;

namespace actcore {
namespace {

// The pack hook of one session.
struct Pack {
  PyObject ob_base;
  PyObject* replay;  // the session's; None where each tensor goes the full way, or before the first
  PyObject* whole;   // packs any tensor
  PyObject* anew;    // packs one that is not as the forward before has saved it
};

PyTypeObject* pack_type = nullptr;
thread_local PyObject* innermost = nullptr;  // the Pack entered last in this thread
thread_local PyObject* watcher = nullptr;    // who is asked to unpack in this thread, in the place of this

// Whether nobody sees the calls that Python makes of torch's functions now.
bool is_unseen() {
  Ref modes(PyObject_CallNoArgs(known->torch_functions));
  if (!modes) PyErr_Clear();
  return modes && PyLong_AsLong(modes.get()) == 0;
}

PyObject* pack(PyObject* object, PyObject* tensor) {
  Ref held = Ref::to(object);
  auto* self = reinterpret_cast<Pack*>(object);
  if (self->replay == nullptr || !is_replayable(self->replay) || !is_real(tensor) || !is_unseen())
    return PyObject_CallOneArg(self->whole, tensor);
  Ref replay = Ref::to(self->replay);
  Ref packed(replayed(replay.get(), tensor));
  if (!packed || packed.get() != Py_None) return packed.release();
  return PyObject_CallOneArg(self->anew, tensor);
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
  self->replay = Py_NewRef(Py_None), self->whole = Py_NewRef(whole), self->anew = Py_NewRef(anew);
  return made.release();
}

int traverse_pack(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Pack*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->replay);
  Py_VISIT(self->whole);
  Py_VISIT(self->anew);
  return 0;
}

int clear_pack(PyObject* object) {
  auto* self = reinterpret_cast<Pack*>(object);
  Py_CLEAR(self->replay);
  Py_CLEAR(self->whole);
  Py_CLEAR(self->anew);
  return 0;
}

void deallocate_pack(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear_pack(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef pack_members[] = {
    {"replay", T_OBJECT, offsetof(Pack, replay), 0, "The session's Replay; None where there is none."},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot pack_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_pack)},
    {Py_tp_call, reinterpret_cast<void*>(call_pack)},
    {Py_tp_members, pack_members},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_pack)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_pack)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_pack)},
    {0, nullptr},
};
PyType_Spec pack_spec = {"actcore._native.Pack", sizeof(Pack), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, pack_slots};

// ---- hooks that torch.compile inlines ----

// Whether the frames that the caller calls are neither compiled nor only run as they were compiled.
bool is_eager() {
  Ref callback(PyObject_CallNoArgs(known->compiles));
  if (!callback) PyErr_Clear();
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

PyMethodDef restoring = {"restore", restore, METH_O,
                         "The tensor in whose place this is held: Kept, Beside, or another that has a method unpack."};
PyMethodDef packing = {"pack", packed_eagerly, METH_O, "Packs a tensor for the innermost session of the thread."};
PyMethodDef unpacking = {"unpack", unpacked_eagerly, METH_O, "The tensor in whose place autograd holds this."};
PyMethodDef plain_unpacking = {"unpack", unpack, METH_O, "The tensor in whose place autograd holds this."};

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
