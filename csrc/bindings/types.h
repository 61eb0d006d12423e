// What the classes have in common that are defined here: their functions, and the members that the collector looks at.
#pragma once
#include <Python.h>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "bindings/objects.h"

namespace actcore {

// A function for Python, which raises at its end what was deferred in it.
template <auto kFunction, class... Given>
PyObject* raising(Given... given) {
  Ref result(kFunction(given...));
  if (deferred.type == nullptr) return result.release();
  const Deferred error = std::exchange(deferred, Deferred());
  result = Ref();
  PyErr_Clear();
  PyErr_Restore(error.type, error.value, error.trace);
  return nullptr;
}

// A function of one argument, and one of an array of these (METH_O, METH_FASTCALL), as a table of methods has them.
template <auto kFunction>
constexpr PyCFunction with_one = raising<kFunction, PyObject*, PyObject*>;

template <auto kFunction>
PyCFunction with_several() {
  auto* function = raising<kFunction, PyObject*, PyObject* const*, Py_ssize_t>;
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// An entry of a dictionary from Python, as an owned reference.
inline PyObject* object_in(PyObject* given, const char* name) {
  PyObject* found = PyDict_GetItemString(given, name);
  if (found == nullptr) throw std::invalid_argument(std::string(name) + " must be given");
  return Py_NewRef(found);
}

// An entry that has to be a class.
inline PyTypeObject* type_in(PyObject* given, const char* name) {
  Ref found(object_in(given, name));
  if (!PyType_Check(found.get())) throw std::invalid_argument(std::string(name) + " must be a class");
  return reinterpret_cast<PyTypeObject*>(found.release());
}

// The class of a struct whose objects of Python are an array, `members`.
template <class Struct>
struct Holder {
  static int traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    for (PyObject* held : reinterpret_cast<Struct*>(object)->members) Py_VISIT(held);
    return 0;
  }

  static int clear(PyObject* object) {
    for (PyObject*& held : reinterpret_cast<Struct*>(object)->members) Py_CLEAR(held);
    return 0;
  }

  static void deallocate(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
  }

  static constexpr Py_ssize_t offset_of(int member) {
    return static_cast<Py_ssize_t>(offsetof(Struct, members) + member * sizeof(PyObject*));
  }
};

}  // namespace actcore
