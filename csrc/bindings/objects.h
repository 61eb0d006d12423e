// What the fast path does with Python's objects: owned references, fields of classes with __slots__, copies of these.
#pragma once
#include <Python.h>
#include <structmember.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace actcore {

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

// A new object of a class, of which nothing is set. Python's collector does not look at it: what the fast path makes
// holds no object that leads back to it, and thousands of them, which live from forward to backward, would have the
// collector go through all that the process has.
inline Ref new_of(PyTypeObject* type) {
  Ref made(type->tp_alloc(type, 0));
  if (made && PyObject_IS_GC(made.get())) PyObject_GC_UnTrack(made.get());
  return made;
}

// An object with the fields of another one, whose class has __slots__ alone, and no base with fields.
inline Ref copy_of(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Ref copy = new_of(type);
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
