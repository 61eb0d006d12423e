// What the fast path does with Python's objects: owned references, fields of classes with __slots__, copies of these.
#pragma once
#include <Python.h>
#include <structmember.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace actcore {

// Entries of a map of storages, from which on it looks for storages that are gone.
constexpr Py_ssize_t kRoom = 1024;

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  static Ref to(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// A field of a class with __slots__, by its place in the objects.
class Field {
 public:
  Field() = default;
  Field(PyTypeObject* type, const char* name) {
    Ref member(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name));
    if (!member || !Py_IS_TYPE(member.get(), &PyMemberDescr_Type)) {
      PyErr_Clear();
      throw std::invalid_argument(std::string(type->tp_name) + " must have " + name + " among its __slots__");
    }
    offset_ = reinterpret_cast<PyMemberDescrObject*>(member.get())->d_member->offset;
  }

  // Borrowed; null where it was never set.
  PyObject* of(PyObject* object) const { return *at(object); }
  // Takes over the new value.
  void set(PyObject* object, Ref value) const {
    PyObject* old = std::exchange(*at(object), value.release());
    Py_XDECREF(old);
  }

 private:
  PyObject** at(PyObject* object) const {
    return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }
  Py_ssize_t offset_ = 0;
};

// Whether an error is one that torch raises of a tensor that cannot tell; another one stays.
inline bool cannot_tell() {
  for (PyObject* kind : {PyExc_RuntimeError, PyExc_ValueError})  // and NotImplementedError, which is the former
    if (PyErr_ExceptionMatches(kind)) {
      PyErr_Clear();
      return true;
    }
  return false;
}

// An error that is raised once the function is over that Python has called; all null where there is none.
struct Deferred {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
};
inline thread_local Deferred deferred;

// Goes on after an error. One that does not say that a tensor cannot tell is not lost: a function mode of the user's sees
// what is read of tensors here, and the user may press Ctrl-C in it.
inline void go_on() {
  if (!PyErr_Occurred() || cannot_tell()) return;
  if (deferred.type != nullptr)
    PyErr_Clear();
  else
    PyErr_Fetch(&deferred.type, &deferred.value, &deferred.trace);
}

inline Ref attribute(PyObject* object, PyObject* name) { return Ref(PyObject_GetAttr(object, name)); }

// What a method without arguments returns.
inline Ref called(PyObject* object, PyObject* name) { return Ref(PyObject_CallMethodNoArgs(object, name)); }

// Whether an attribute is what is expected, by identity. What cannot be asked is not.
inline bool has(PyObject* object, PyObject* name, PyObject* expected) {
  Ref found = attribute(object, name);
  if (!found) go_on();
  return found && found.get() == expected;
}

// The object that a weak reference is of; null where it is gone.
inline Ref object_of(PyObject* weak) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(weak, &found) < 0) PyErr_Clear();
  return Ref(found);
#else
  PyObject* found = PyWeakref_GetObject(weak);
  return found == Py_None ? Ref() : Ref::to(found);
#endif
}

// Has Python's collector not look at an object that cannot lead back to itself: thousands of these, which live from
// forward to backward, would have it go through all that the process has.
inline void untrack(PyObject* object) {
  if (PyObject_IS_GC(object)) PyObject_GC_UnTrack(object);
}

// Whether objects of a class have its __slots__ and nothing else, so that they can be copied as below.
inline bool has_slots_alone(PyTypeObject* type) {
  return type->tp_base == &PyBaseObject_Type && type->tp_dictoffset == 0 && type->tp_itemsize == 0;
}

// A copy of a list or tuple, of which each item is made anew.
template <class Make>
Ref copy_with(PyObject* sequence, const Make& make) {
  const bool list = PyList_CheckExact(sequence);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
  Ref copy(list ? PyList_New(count) : PyTuple_New(count));
  for (Py_ssize_t i = 0; copy && i < count; ++i) {
    Ref item = make(PySequence_Fast_GET_ITEM(sequence, i));
    if (!item) return item;
    if (list)
      PyList_SET_ITEM(copy.get(), i, item.release());
    else
      PyTuple_SET_ITEM(copy.get(), i, item.release());
  }
  return copy;
}

// An object with the fields of another one, whose class has __slots__ alone.
inline Ref copy_of(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Ref copy(type->tp_alloc(type, 0));
  if (!copy) return copy;
  const Py_ssize_t weak = type->tp_weaklistoffset;
  for (Py_ssize_t at = sizeof(PyObject); at < type->tp_basicsize; at += sizeof(PyObject*)) {
    if (at == weak) continue;
    PyObject* field = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + at);
    *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(copy.get()) + at) = Py_XNewRef(field);
  }
  return copy;
}

}  // namespace actcore
