// What integrations' CallTracker does of every torch function that a forward calls: who calls what with which tensors,
// while it runs, and which of these somebody else made. What is seldom is left to its methods.
#include "bindings/calls.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "bindings/follow.h"
#include "bindings/formulas.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

// The classes and functions of Python that this knows.
struct Known {
  explicit Known(const py::dict& given) {
    const auto type = [&](const char* name) { return type_in(given.ptr(), name); };
    const auto object = [&](const char* name) { return object_in(given.ptr(), name); };
    call = type("Call"), tensor = type("Tensor"), parameter = type("Parameter");
    storages = type("StorageSet");
    leaves = object("LEAVES"), tensors_in = object("tensors_in");
    function = {call, "function"}, args = {call, "_args"}, kwargs = {call, "_kwargs"}, arguments = {call, "arguments"};
    recomputes = {call, "recomputes"}, module = {call, "module"}, operator_ = {call, "_operator"};
    addresses = {call, "_addresses"}, by_address = {storages, "by_address"};
    if (!has_slots_alone(call)) throw std::invalid_argument("Call must have __slots__ and no base with fields");
  }

  PyTypeObject *call, *tensor, *parameter, *storages;
  PyObject *leaves, *tensors_in;
  Field function, args, kwargs, arguments, recomputes, module, operator_, addresses, by_address;
  PyObject* name_is_leaf = PyUnicode_InternFromString("is_leaf");
  PyObject* name_meet = PyUnicode_InternFromString("_meet");
  PyObject* name_bear = PyUnicode_InternFromString("_bear");
  PyObject* name_untyped_storage = PyUnicode_InternFromString("untyped_storage");
  PyObject* name_cdata = PyUnicode_InternFromString("_cdata");
  PyObject* name_weak_ref = PyUnicode_InternFromString("_weak_ref");
  PyObject* empty = PyUnicode_InternFromString("");
};

std::unique_ptr<Known> known;

// What this knows of the class Checkpoints, and asks of torch for it.
struct KnownOfCheckpoints {
  explicit KnownOfCheckpoints(const py::dict& given)
      : type(type_in(given.ptr(), "Checkpoints")),
        top_hooks(object_in(given.ptr(), "top_hooks")),
        grad_enabled(object_in(given.ptr(), "is_grad_enabled")),
        own(type, "_own"),
        inside(type, "_inside"),
        waiting(type, "_waiting"),
        unseen_decided(type, "_unseen_decided"),
        unseen_is_over(type, "_unseen_is_over") {}

  PyTypeObject* type;
  PyObject *top_hooks, *grad_enabled;
  Field own, inside, waiting, unseen_decided, unseen_is_over;
  PyObject* name_look = PyUnicode_InternFromString("look");
};

std::unique_ptr<KnownOfCheckpoints> known_of;

// Adds the tensors in a value, which may be a tensor, hold some, or none.
bool add_tensors(PyObject* list, PyObject* value) {
  PyTypeObject* kind = Py_TYPE(value);
  if (kind == known->tensor || kind == known->parameter) return PyList_Append(list, value) == 0;
  const int leaf = PySet_Contains(known->leaves, reinterpret_cast<PyObject*>(kind));
  if (leaf != 0) return leaf > 0;
  Ref found(PyObject_CallOneArg(known->tensors_in, value));
  return found && PyList_SetSlice(list, PyList_GET_SIZE(list), PyList_GET_SIZE(list), found.get()) == 0;
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

// Borrowed; null where it is None, or was never set.
PyObject* member(Calls* self, Calls::Member which) {
  PyObject* found = self->members[which];
  return found == Py_None ? nullptr : found;
}

// Whether a tensor is torch's own. Another may have its elements in a tensor without a history, as a DTensor does.
bool is_plain(PyObject* tensor) { return Py_IS_TYPE(tensor, known->tensor) || Py_IS_TYPE(tensor, known->parameter); }

// The memory of a tensor, as sets of storages know it.
struct Memory {
  Ref storage, address;

  // Of torch's own tensors that have a storage to ask for; of others there is none, without an error.
  static Memory of(PyObject* tensor) {
    Memory found;
    if (!is_plain(tensor)) return found;
    found.storage = Ref(PyObject_CallMethodNoArgs(tensor, known->name_untyped_storage));
    if (found.storage) found.address = Ref(PyObject_GetAttr(found.storage.get(), known->name_cdata));
    return found;
  }
  explicit operator bool() const { return static_cast<bool>(address); }
};

// Whether a set has a storage. -1: an error.
int has_storage(PyObject* set, const Memory& memory) {
  return PyDict_Contains(known->by_address.of(set), memory.address.get());
}

// Adds a storage to a set that does not have it. 0: there are so many that some may be forgotten first, which is left to
// the set. -1: an error.
int add_storage(PyObject* set, const Memory& memory) {
  PyObject* by_address = known->by_address.of(set);
  if (PyDict_GET_SIZE(by_address) >= kRoom) return 0;
  Ref counted(PyObject_CallMethodNoArgs(memory.storage.get(), known->name_weak_ref));  // the set gives it back
  if (!counted || PyDict_SetItem(by_address, memory.address.get(), Py_True) < 0) return -1;
  return 1;
}

// Marks an argument that no call of this forward made, as CallTracker._meet does. False: an error.
bool meet_one(Calls* self, PyObject* argument) {
  const Memory memory = Memory::of(argument);
  int done = 0;
  if (memory) {
    done = has_storage(self->members[Calls::kBorn], memory);
    if (done == 0) done = has_storage(self->members[Calls::kForeign], memory);
    if (done == 0) done = add_storage(self->members[Calls::kForeign], memory);
  } else if (PyErr_Occurred() && !cannot_tell()) {
    return false;
  }
  if (done == 0) done = Ref(PyObject_CallMethodOneArg(&self->ob_base, known->name_meet, argument)) ? 1 : -1;
  return done > 0;
}

// Of the arguments, those without a history are met: some operator that the tracker does not see, such as a custom
// autograd function, may have made one that has. A parameter is known for one as it is, and by its views.
bool meet(Calls* self, PyObject* arguments) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments); ++i) {
    PyObject* argument = PyList_GET_ITEM(arguments, i);
    if (Py_IS_TYPE(argument, known->parameter)) continue;
    const int history = has_history(argument);
    if (history < 0 || (history == 0 && !meet_one(self, argument))) return false;
  }
  return true;
}

// Marks a result, as CallTracker._bear does. False: an error.
bool bear(Calls* self, PyObject* output, PyObject* call) {
  PyObject* arguments = known->arguments.of(call);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments); ++i) {
    PyObject* argument = PyList_GET_ITEM(arguments, i);
    if (Py_IS_TYPE(argument, known->parameter) && !meet_one(self, argument)) return false;
  }
  const Memory memory = Memory::of(output);
  int done = 0;
  if (memory) {
    done = has_storage(self->members[Calls::kForeign], memory);
    if (done == 0) done = has_storage(self->members[Calls::kBorn], memory);
    if (done == 0) done = add_storage(self->members[Calls::kBorn], memory);
  } else if (PyErr_Occurred() && !cannot_tell()) {
    return false;
  }
  if (done != 0) return done > 0;
  PyObject* given[] = {&self->ob_base, output, call};
  return static_cast<bool>(Ref(PyObject_VectorcallMethod(known->name_bear, given, 3, nullptr)));
}

// Borrowed; null where there are none.
PyObject* checkpoints_of(Calls* self) {
  PyObject* found = self->members[Calls::kCheckpoints];
  return known_of != nullptr && found != nullptr && Py_IS_TYPE(found, known_of->type) ? found : nullptr;
}

// Has the checkpoints looked at before a call, where the caller is inside of one, or was, or one is to be settled.
// False: an error.
bool look(PyObject* checkpoints) {
  Ref hooks(PyObject_CallOneArg(known_of->top_hooks, Py_False));
  if (!hooks) return false;
  const bool inside = PyTuple_Check(hooks.get()) && PyTuple_GET_ITEM(hooks.get(), 0) != known_of->own.of(checkpoints);
  PyObject* waiting = known_of->waiting.of(checkpoints);
  const bool waits = !PyList_Check(waiting) || PyList_GET_SIZE(waiting) != 0;
  if (!inside && !waits && known_of->inside.of(checkpoints) == Py_False) return true;
  return static_cast<bool>(Ref(PyObject_CallMethodNoArgs(checkpoints, known_of->name_look)));
}

// Whether a call that is over may have decided something in a checkpoint's segment. -1: an error.
int may_decide(PyObject* checkpoints) {
  for (const Field& flag : {known_of->inside, known_of->unseen_decided, known_of->unseen_is_over})
    if (flag.of(checkpoints) != Py_False) return 1;
  Ref enabled(PyObject_CallNoArgs(known_of->grad_enabled));
  return enabled ? enabled.get() != Py_True : -1;
}

// Whether the results of a function are noted: not of one that is known for None. -1: an error.
int is_noted(Calls* self, PyObject* function) {
  PyObject* by_function = member(self, Calls::kNoted);
  if (by_function == nullptr || !PyDict_Check(by_function)) return 1;
  PyObject* found = PyDict_GetItemWithError(by_function, function);
  if (found == nullptr && PyErr_Occurred()) return cannot_tell() ? 1 : -1;
  return found != Py_None;
}

// Runs the call, or has it run, and tells of it who asks; its results are in `outputs`.
Ref run(Calls* self, PyObject* call, PyObject* runner, PyObject* outputs) {
  PyObject* arguments = known->arguments.of(call);
  if (!meet(self, arguments)) return Ref();
  PyObject* kwargs = known->kwargs.of(call);
  Ref result(runner != Py_None ? PyObject_CallOneArg(runner, call)
                               : PyObject_Call(known->function.of(call), known->args.of(call),
                                               PyDict_GET_SIZE(kwargs) ? kwargs : nullptr));
  if (!result || !add_tensors(outputs, result.get())) return Ref();
  if (Ref watcher = Ref::to(member(self, Calls::kWatcher))) {
    Ref all(PySequence_Concat(arguments, outputs));
    if (!all || !Ref(PyObject_CallOneArg(watcher.get(), all.get()))) return Ref();
  }
  if (Ref over = Ref::to(member(self, Calls::kOver))) {
    PyObject* checkpoints = checkpoints_of(self);
    const int told = checkpoints == nullptr ? 1 : may_decide(checkpoints);
    PyObject* given[] = {call, outputs};
    if (told < 0 || (told && !Ref(PyObject_Vectorcall(over.get(), given, 2, nullptr)))) return Ref();
  }
  if (Ref note = Ref::to(member(self, Calls::kNote))) {
    const int noted = is_noted(self, known->function.of(call));
    if (noted < 0 || (noted && !note_call(note.get(), call, outputs))) return Ref();
  }
  return result;
}

// Runs the call, and has it followed, where somebody follows the forward.
Ref run_followed(Calls* self, PyObject* call, PyObject* runner, PyObject* outputs) {
  Ref follower = Ref::to(member(self, Calls::kFollower));
  if (!follower) return run(self, call, runner, outputs);
  Ref result = begin_followed(follower.get(), call) ? run(self, call, runner, outputs) : Ref();
  if (!result) {
    fail_followed(follower.get());
    return result;
  }
  return end_followed(follower.get(), call, outputs) ? std::move(result) : Ref();
}

// Whether there are the sets that all goes by; otherwise there is an error.
bool has_sets(Calls* self) {
  for (const Calls::Member set : {Calls::kForeign, Calls::kBorn})
    if (known == nullptr || self->members[set] == nullptr || !PyObject_TypeCheck(self->members[set], known->storages)) {
      PyErr_Format(PyExc_TypeError, "%s must be a StorageSet", kCallsMembers[set]);
      return false;
    }
  return true;
}

PyObject* tracked(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  auto* self = reinterpret_cast<Calls*>(object);
  if (count != 4 || !PyTuple_Check(given[1]) || !PyDict_Check(given[2]) || !has_sets(self)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "tracked takes a function, its args and kwargs, and who runs it or None");
    return nullptr;
  }
  if (Ref checkpoints = Ref::to(checkpoints_of(self)); checkpoints && !look(checkpoints.get())) return nullptr;
  Ref outputs(PyList_New(0)), call = call_of(given[0], given[1], given[2]);
  if (!call || !outputs) return nullptr;
  Ref outer(std::exchange(self->members[Calls::kCall], Py_NewRef(call.get())));
  Ref result = run_followed(self, call.get(), given[3], outputs.get());
  Ref over(std::exchange(self->members[Calls::kCall], outer.release()));
  if (!result) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs.get()); ++i) {
    PyObject* output = PyList_GET_ITEM(outputs.get(), i);
    const int history = has_history(output);
    if (history < 0) return nullptr;
    if ((history == 0 || !is_plain(output)) && !bear(self, output, call.get())) return nullptr;
  }
  return result.release();
}

// Runs a function that tells something of a tensor's shape or kind, and makes no tensor.
PyObject* described(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  auto* self = reinterpret_cast<Calls*>(object);
  if (count != 3 || !PyTuple_Check(given[1]) || !PyDict_Check(given[2]) || !has_sets(self)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "described takes a function, its args and kwargs");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[1]); ++i) {
    PyObject* argument = PyTuple_GET_ITEM(given[1], i);
    if (!Py_IS_TYPE(argument, known->tensor)) continue;
    const int history = has_history(argument);
    if (history < 0 || (history == 0 && !meet_one(self, argument))) return nullptr;
  }
  return PyObject_Call(given[0], given[1], PyDict_GET_SIZE(given[2]) ? given[2] : nullptr);
}

// Notes who holds a tensor's storage, as Owners does: in a dictionary by address, and in the list of what is held. False of
// a tensor of which others must be asked.
PyObject* hold(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !PyDict_Check(given[0]) || !PyList_Check(given[1]) || known == nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "hold takes holders, what is held, a tensor, its holder, and whether that comes first");
    return nullptr;
  }
  const Memory memory = Memory::of(given[2]);
  if (!memory) {
    if (PyErr_Occurred() && !cannot_tell()) return nullptr;
    Py_RETURN_FALSE;
  }
  const int known_before = PyDict_Contains(given[0], memory.address.get());
  if (known_before < 0) return nullptr;
  if (known_before && given[4] != Py_True) Py_RETURN_TRUE;
  if (PyDict_SetItem(given[0], memory.address.get(), given[3]) < 0 || PyList_Append(given[1], memory.storage.get()) < 0)
    return nullptr;
  Py_RETURN_TRUE;
}

PyMethodDef holding = {
    "hold", with_several<hold>(), METH_FASTCALL,
    "Notes who holds a tensor's storage: (holders by address, what is held, tensor, holder, whether it comes first)."};

PyMethodDef methods[] = {
    {"tracked", with_several<tracked>(), METH_FASTCALL,
     "Runs a torch function, and notes what is known of its tensors: (function, args, kwargs, who runs it or None)."},
    {"described", with_several<described>(), METH_FASTCALL,
     "The same of a function that makes no tensor, saves none and decides nothing: (function, args, kwargs)."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef attributes[] = {
    {kCallsMembers[Calls::kCall], T_OBJECT, Holder<Calls>::offset_of(Calls::kCall), 0, nullptr},
    {kCallsMembers[Calls::kForeign], T_OBJECT, Holder<Calls>::offset_of(Calls::kForeign), 0, nullptr},
    {kCallsMembers[Calls::kBorn], T_OBJECT, Holder<Calls>::offset_of(Calls::kBorn), 0, nullptr},
    {kCallsMembers[Calls::kCheckpoints], T_OBJECT, Holder<Calls>::offset_of(Calls::kCheckpoints), 0, nullptr},
    {kCallsMembers[Calls::kWatcher], T_OBJECT, Holder<Calls>::offset_of(Calls::kWatcher), 0, nullptr},
    {kCallsMembers[Calls::kOver], T_OBJECT, Holder<Calls>::offset_of(Calls::kOver), 0, nullptr},
    {kCallsMembers[Calls::kNoted], T_OBJECT, Holder<Calls>::offset_of(Calls::kNoted), 0, nullptr},
    {kCallsMembers[Calls::kNote], T_OBJECT, Holder<Calls>::offset_of(Calls::kNote), 0, nullptr},
    {kCallsMembers[Calls::kFollower], T_OBJECT, Holder<Calls>::offset_of(Calls::kFollower), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_methods, methods},
    {Py_tp_members, attributes},
    {Py_tp_traverse, reinterpret_cast<void*>(Holder<Calls>::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Holder<Calls>::clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Holder<Calls>::deallocate)},
    {0, nullptr},
};
PyType_Spec spec = {"actcore._native.Calls", sizeof(Calls), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

PyTypeObject* type = nullptr;

}  // namespace

bool is_calls(PyObject* object) { return PyObject_TypeCheck(object, type); }

void bind_calls(py::module_& module) {
  module.def(
      "bind_calls", [](const py::dict& given) { known = std::make_unique<Known>(given); }, py::arg("given"),
      "Names the classes and functions that Calls knows.");
  module.def(
      "bind_checkpoints", [](const py::dict& given) { known_of = std::make_unique<KnownOfCheckpoints>(given); },
      py::arg("given"), "Names what Calls knows of Checkpoints.");
  type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  module.add_object("hold", PyCFunction_New(&holding, nullptr));
  module.add_object("Calls", reinterpret_cast<PyObject*>(type));
}

}  // namespace actcore
