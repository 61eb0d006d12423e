// What integrations' CallTracker does of every torch function that a forward calls: who calls what with which tensors,
// while it runs, and which of these somebody else made. What is seldom is left to its methods.
#include "bindings/calls.h"

#include <memory>
#include <string>

#include "bindings/objects.h"

namespace py = pybind11;

namespace actcore {
namespace {

// The classes and functions of Python that this knows.
struct Known {
  explicit Known(const py::dict& given) {
    const auto type = [&](const char* name) {
      PyObject* found = given[name].ptr();
      if (!PyType_Check(found)) throw std::invalid_argument(std::string(name) + " must be a class");
      return reinterpret_cast<PyTypeObject*>(Py_NewRef(found));
    };
    call = type("Call"), tensor = type("Tensor"), parameter = type("Parameter");
    leaves = Py_NewRef(given["LEAVES"].ptr()), tensors_in = Py_NewRef(given["tensors_in"].ptr());
    function = {call, "function"}, args = {call, "_args"}, kwargs = {call, "_kwargs"}, arguments = {call, "arguments"};
    recomputes = {call, "recomputes"}, module = {call, "module"}, operator_ = {call, "_operator"};
    addresses = {call, "_addresses"};
    if (!has_slots_alone(call)) throw std::invalid_argument("Call must have __slots__ and no base with fields");
  }

  PyTypeObject *call, *tensor, *parameter;
  PyObject *leaves, *tensors_in;
  Field function, args, kwargs, arguments, recomputes, module, operator_, addresses;
  PyObject* name_call = PyUnicode_InternFromString("call");
  PyObject* name_look = PyUnicode_InternFromString("look");
  PyObject* name_watcher = PyUnicode_InternFromString("watcher");
  PyObject* name_over = PyUnicode_InternFromString("over");
  PyObject* name_is_leaf = PyUnicode_InternFromString("is_leaf");
  PyObject* name_meet = PyUnicode_InternFromString("_meet");
  PyObject* name_bear = PyUnicode_InternFromString("_bear");
  PyObject* name_untyped_storage = PyUnicode_InternFromString("untyped_storage");
  PyObject* name_cdata = PyUnicode_InternFromString("_cdata");
  PyObject* name_born = PyUnicode_InternFromString("born");
  PyObject* name_foreign = PyUnicode_InternFromString("foreign");
  PyObject* name_by_address = PyUnicode_InternFromString("by_address");
  PyObject* empty = PyUnicode_InternFromString("");
};

std::unique_ptr<Known> known;

// Adds the tensors in a value, which may be a tensor, hold some, or none.
bool add_tensors(PyObject* list, PyObject* value) {
  PyTypeObject* kind = Py_TYPE(value);
  if (kind == known->tensor || kind == known->parameter) return PyList_Append(list, value) == 0;
  const int leaf = PySet_Contains(known->leaves, reinterpret_cast<PyObject*>(kind));
  if (leaf != 0) return leaf > 0;
  Ref found(PyObject_CallOneArg(known->tensors_in, value));
  return found && PyList_SetSlice(list, PyList_GET_SIZE(list), PyList_GET_SIZE(list), found.get()) == 0;
}

// Whether an error is one that torch raises of a tensor that cannot tell; another one stays.
bool cannot_tell() {
  for (PyObject* kind : {PyExc_RuntimeError, PyExc_ValueError})  // and NotImplementedError, which is the former
    if (PyErr_ExceptionMatches(kind)) {
      PyErr_Clear();
      return true;
    }
  return false;
}

// Whether an operator that autograd recorded made the tensor; true of a view that autograd cannot follow. -1: an error.
int has_history(PyObject* tensor) {
  Ref leaf(PyObject_GetAttr(tensor, known->name_is_leaf));
  if (!leaf) return cannot_tell() ? 1 : -1;
  return leaf.get() != Py_True;
}

Ref call_of(PyObject* function, PyObject* args, PyObject* kwargs) {
  Ref call(known->call->tp_alloc(known->call, 0)), arguments(PyList_New(0));
  if (!call || !arguments) return Ref();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i)
    if (!add_tensors(arguments.get(), PyTuple_GET_ITEM(args, i))) return Ref();
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &name, &value);)
    if (!add_tensors(arguments.get(), value)) return Ref();
  known->function.set(call.get(), Ref::to(function));
  known->args.set(call.get(), Ref::to(args));
  known->kwargs.set(call.get(), Ref::to(kwargs));
  known->arguments.set(call.get(), std::move(arguments));
  known->recomputes.set(call.get(), Ref::to(Py_False));
  known->module.set(call.get(), Ref::to(Py_None));
  known->operator_.set(call.get(), Ref::to(known->empty));
  known->addresses.set(call.get(), Ref::to(Py_None));
  return call;
}

// An attribute that may be asked something; null, without an error, where it is None.
Ref asked(PyObject* tracker, PyObject* name) {
  Ref found(PyObject_GetAttr(tracker, name));
  return found.get() == Py_None ? Ref() : std::move(found);
}

// Whether a tensor's storage is one that the tracker knows: one that the forward made, or that was there before. -1: an
// error.
int is_met(PyObject* tracker, PyObject* tensor) {
  if (!Py_IS_TYPE(tensor, known->tensor)) return 0;
  Ref storage(PyObject_CallMethodNoArgs(tensor, known->name_untyped_storage));
  Ref address(storage ? PyObject_GetAttr(storage.get(), known->name_cdata) : nullptr);
  if (!address) return cannot_tell() ? 0 : -1;  // one that has no storage is for others to look at
  int found = 0;
  for (PyObject* name : {known->name_born, known->name_foreign}) {
    Ref set(PyObject_GetAttr(tracker, name));
    Ref addresses(set ? PyObject_GetAttr(set.get(), known->name_by_address) : nullptr);
    if (!addresses) return -1;
    found = PyDict_Contains(addresses.get(), address.get());
    if (found != 0) return found;
  }
  return found;
}

// Of the arguments, those without a history are met: some operator that the tracker does not see, such as a custom
// autograd function, may have made one that has. A parameter is known for one as it is, and by its views.
bool meet(PyObject* tracker, PyObject* arguments) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments); ++i) {
    PyObject* argument = PyList_GET_ITEM(arguments, i);
    if (Py_IS_TYPE(argument, known->parameter)) continue;
    int done = has_history(argument);
    if (done == 0) done = is_met(tracker, argument);
    if (done < 0) return false;
    if (done > 0) continue;
    if (!Ref(PyObject_CallMethodOneArg(tracker, known->name_meet, argument))) return false;
  }
  return true;
}

// Runs the call, or has it run, and tells of it who asks; its results are in `outputs`.
Ref run(PyObject* tracker, PyObject* call, PyObject* runner, PyObject* outputs) {
  PyObject* arguments = known->arguments.of(call);
  if (!meet(tracker, arguments)) return Ref();
  PyObject* kwargs = known->kwargs.of(call);
  Ref result(runner != Py_None ? PyObject_CallOneArg(runner, call)
                               : PyObject_Call(known->function.of(call), known->args.of(call),
                                               PyDict_GET_SIZE(kwargs) ? kwargs : nullptr));
  if (!result || !add_tensors(outputs, result.get())) return Ref();
  if (Ref watcher = asked(tracker, known->name_watcher)) {
    Ref all(PySequence_Concat(arguments, outputs));
    if (!all || !Ref(PyObject_CallOneArg(watcher.get(), all.get()))) return Ref();
  }
  if (PyErr_Occurred()) return Ref();
  if (Ref over = asked(tracker, known->name_over)) {
    PyObject* given[] = {call, outputs};
    if (!Ref(PyObject_Vectorcall(over.get(), given, 2, nullptr))) return Ref();
  }
  return PyErr_Occurred() ? Ref() : std::move(result);
}

PyObject* tracked(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !PyTuple_Check(given[2]) || !PyDict_Check(given[3]) || known == nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "tracked takes a tracker, a function, its args and kwargs, and who runs it or None");
    return nullptr;
  }
  PyObject* tracker = given[0];
  if (Ref look = asked(tracker, known->name_look)) {
    if (!Ref(PyObject_CallNoArgs(look.get()))) return nullptr;
  }
  if (PyErr_Occurred()) return nullptr;
  Ref outer(PyObject_GetAttr(tracker, known->name_call)), outputs(PyList_New(0));
  Ref call = outer && outputs ? call_of(given[1], given[2], given[3]) : Ref();
  if (!call || PyObject_SetAttr(tracker, known->name_call, call.get()) < 0) return nullptr;
  Ref result = run(tracker, call.get(), given[4], outputs.get());
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const bool restored = PyObject_SetAttr(tracker, known->name_call, outer.get()) == 0;
  if (type != nullptr) PyErr_Restore(type, value, trace);
  if (!result || !restored) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs.get()); ++i) {
    PyObject* output = PyList_GET_ITEM(outputs.get(), i);
    const int history = has_history(output);
    if (history < 0) return nullptr;
    if (history > 0) continue;
    PyObject* borne[] = {tracker, output, call.get()};
    if (!Ref(PyObject_VectorcallMethod(known->name_bear, borne, 3, nullptr))) return nullptr;
  }
  return result.release();
}

PyMethodDef tracking = {
    "tracked", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(tracked)), METH_FASTCALL,
    "Runs a torch function under a CallTracker: (tracker, function, args, kwargs, who runs it or None)."};

}  // namespace

void bind_calls(py::module_& module) {
  module.def(
      "bind_calls", [](const py::dict& given) { known = std::make_unique<Known>(given); }, py::arg("given"),
      "Names the classes and functions that tracked knows.");
  module.add_object("tracked", PyCFunction_New(&tracking, nullptr));
}

}  // namespace actcore
