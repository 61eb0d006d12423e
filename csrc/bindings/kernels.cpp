// ``Kernel``: an operator of actcore on the CPU, called without torch's dispatcher. This module knows nothing of torch: what
// turns its tensors into handles and back is looked up in the library of operators, and is there from torch 2.14 on.
#include "bindings/kernels.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <exception>
#include <string>

#include "bindings/objects.h"
#include "ops/direct.h"

namespace py = pybind11;

namespace actcore {
namespace {

using Handle = void*;

constexpr Py_ssize_t kMost = 13;  // of arguments, and of results

struct Torch {
  int32_t (*from_python)(void* object, Handle* tensor);
  int32_t (*to_python)(Handle tensor, void* type, void** object);
  int32_t (*let_go)(Handle tensor);
  int32_t (*device)(Handle tensor, int32_t* type);
  int32_t (*cpu)();
};

Torch torch{};
PyObject* dtypes = nullptr;  // a dict from torch's dtypes to their numbers
PyTypeObject* kernel_type = nullptr;

struct Kernel {
  PyObject ob_base;
  vectorcallfunc vectorcall;
  const ops::Direct* direct;
};

bool refused(const ops::Direct& direct, Py_ssize_t place, const char* kind, PyObject* given) {
  if (PyErr_Occurred()) return false;
  PyErr_Format(PyExc_TypeError, "%s: argument %zd must be %s, got %R", direct.name, place, kind, given);
  return false;
}

template <class T>
uint64_t word_of(T value) {
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}

// Puts one argument on the stack. False: an error.
bool put(const ops::Direct& direct, Py_ssize_t place, PyObject* given, uint64_t* word) {
  switch (direct.arguments[place]) {
    case 't': {
      Handle tensor = nullptr;
      if (torch.from_python(given, &tensor) != 0) return refused(direct, place, "a tensor", given);
      int32_t device = 0;
      if (torch.device(tensor, &device) != 0 || device != torch.cpu()) {  // a tensor on meta has no memory to read
        torch.let_go(tensor);
        return refused(direct, place, "a tensor on the CPU", given);
      }
      *word = word_of(tensor);
      return true;
    }
    case 'i': {
      const long long value = PyLong_AsLongLong(given);
      *word = word_of<int64_t>(value);
      return value != -1 || !PyErr_Occurred();
    }
    case 'b': *word = word_of(given == Py_True); return PyBool_Check(given) || refused(direct, place, "a bool", given);
    case 'd': {
      const double value = PyFloat_AsDouble(given);
      *word = word_of(value);
      return value != -1.0 || !PyErr_Occurred();
    }
    default: {
      PyObject* number = PyDict_GetItemWithError(dtypes, given);
      if (number == nullptr) return refused(direct, place, "a dtype that is known here", given);
      *word = word_of(static_cast<int32_t>(PyLong_AsLong(number)));
      return true;
    }
  }
}

Handle handle_of(uint64_t word) {
  Handle tensor = nullptr;
  std::memcpy(&tensor, &word, sizeof tensor);
  return tensor;
}

// The tensor of a handle, which is let go.
Ref taken(uint64_t word) {
  const Handle tensor = handle_of(word);
  void* object = nullptr;
  if (torch.to_python(tensor, nullptr, &object) != 0)
    PyErr_SetString(PyExc_RuntimeError, "torch made no object of a tensor; its own words are on stderr");
  torch.let_go(tensor);
  return Ref(static_cast<PyObject*>(object));
}

// Runs the operator, other threads of Python meanwhile. False: an error.
bool run(const ops::Direct& direct, uint64_t* stack, Py_ssize_t count) {
  std::string failure;
  PyThreadState* thread = PyEval_SaveThread();
  try {
    direct.call(stack, static_cast<uint64_t>(count), direct.results);
  } catch (const std::exception& error) {
    failure = error.what();
    if (failure.empty()) failure = "it failed without a word";
  } catch (...) {
    failure = "it failed with something that is no exception";
  }
  PyEval_RestoreThread(thread);
  if (failure.empty()) return true;
  PyErr_SetString(PyExc_RuntimeError, failure.c_str());
  return false;
}

PyObject* call(PyObject* self, PyObject* const* given, size_t flags, PyObject* names) {
  const ops::Direct& direct = *reinterpret_cast<Kernel*>(self)->direct;
  const Py_ssize_t count = PyVectorcall_NARGS(flags), wanted = static_cast<Py_ssize_t>(std::strlen(direct.arguments));
  if (count != wanted || (names != nullptr && PyTuple_GET_SIZE(names) != 0)) {
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments by place, got %zd", direct.name, wanted, count);
    return nullptr;
  }
  std::array<uint64_t, kMost> stack{};
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (put(direct, i, given[i], &stack[static_cast<size_t>(i)])) continue;
    for (Py_ssize_t before = 0; before < i; ++before)
      if (direct.arguments[before] == 't') torch.let_go(handle_of(stack[static_cast<size_t>(before)]));
    return nullptr;
  }
  if (!run(direct, stack.data(), count)) return nullptr;
  std::array<Ref, kMost> results;
  bool complete = true;
  for (uint64_t i = 0; i < direct.results; ++i) {
    results[i] = taken(stack[i]);
    complete = complete && results[i];
  }
  if (!complete) return nullptr;
  if (direct.results == 1) return results[0].release();
  Ref found(PyTuple_New(static_cast<Py_ssize_t>(direct.results)));
  if (!found) return nullptr;
  for (uint64_t i = 0; i < direct.results; ++i)
    PyTuple_SET_ITEM(found.get(), static_cast<Py_ssize_t>(i), results[i].release());
  return found.release();
}

PyObject* written(PyObject* self) {
  return PyUnicode_FromFormat("<kernel %s>", reinterpret_cast<Kernel*>(self)->direct->name);
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Kernel, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(written)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_members, members},
    {0, nullptr},
};
PyType_Spec spec = {"actcore._native.Kernel", sizeof(Kernel), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

template <class Function>
bool look_up(void* library, const char* name, Function* found) {
  *found = reinterpret_cast<Function>(dlsym(library, name));
  return *found != nullptr;
}

// The kernels of a library of operators that is loaded, by name; none where torch has no way to call them so.
py::dict kernels_in(const std::string& path, const py::dict& numbers) {
  py::dict found;
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const ops::Direct* (*listed)() = nullptr;
  if (library == nullptr || !look_up(library, "actcore_cpu_kernels", &listed) ||
      !look_up(library, "torch_tensor_from_pyobject", &torch.from_python) ||
      !look_up(library, "torch_tensor_to_pyobject", &torch.to_python) ||
      !look_up(library, "aoti_torch_delete_tensor_object", &torch.let_go) ||
      !look_up(library, "aoti_torch_get_device_type", &torch.device) ||
      !look_up(library, "aoti_torch_device_type_cpu", &torch.cpu))
    return found;
  Py_XSETREF(dtypes, Py_NewRef(numbers.ptr()));
  for (const ops::Direct* direct = listed(); direct != nullptr; direct = direct->next) {
    if (std::strlen(direct->arguments) > kMost || direct->results > kMost) continue;
    auto* kernel = reinterpret_cast<Kernel*>(kernel_type->tp_alloc(kernel_type, 0));
    if (kernel == nullptr) throw py::error_already_set();
    kernel->vectorcall = call;
    kernel->direct = direct;
    found[direct->name] = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(kernel));
  }
  return found;
}

}  // namespace

bool is_kernel(PyObject* function) { return Py_IS_TYPE(function, kernel_type); }

void bind_kernels(py::module_& module) {
  kernel_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (kernel_type == nullptr) throw py::error_already_set();
  module.add_object("Kernel", reinterpret_cast<PyObject*>(kernel_type));
  module.def(
      "kernels", kernels_in, py::arg("path"), py::arg("dtypes"),
      "The kernels in a library of operators, by name, for torch's own tensors on the CPU; none before torch 2.14.");
}

}  // namespace actcore
