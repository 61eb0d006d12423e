// What integrations' Formulas does of each call that is over: where the forward before has called the same with the same
// kind of tensors, the formula of its result is made by that one's template. integrations/runtime/formulas/formula.py
// says what the objects are.
#include "bindings/formulas.h"

#include <cmath>
#include <cstddef>

#include "bindings/replay_stores.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

PyTypeObject* noted_type = nullptr;

// What restores an operand, as formula.py has it.
enum Kind { kStored, kMade, kKept, kCopied, kUnread, kStatistics };

// Whether an argument that is no tensor is the one of the template, bit for bit. Others than these may be equal and
// differ, as zeros of NumPy do by their signs.
bool is_argument(PyObject* expected, PyObject* given) {
  if (expected == given) return true;
  if (Py_TYPE(expected) != Py_TYPE(given)) return false;
  if (PyFloat_CheckExact(expected)) {
    const double one = PyFloat_AS_DOUBLE(expected), other = PyFloat_AS_DOUBLE(given);
    return one == other && (one != 0 || std::signbit(one) == std::signbit(other));
  }
  const bool shape = PyTuple_Check(expected);  // a torch.Size
  if (!shape && !PyLong_CheckExact(expected) && !PyUnicode_CheckExact(expected)) return false;
  return is_same(Ref::to(given), expected);
}

// Whether the arguments of a call are those of the template; the tensors among them are appended to a list.
bool are_arguments(PyObject* expected, PyObject* given, PyObject* tensors) {
  if (Py_IS_TYPE(expected, known->slot)) return is_real(given) && PyList_Append(tensors, given) == 0;
  const bool list = PyList_CheckExact(expected);
  if (!list && !PyTuple_CheckExact(expected)) return is_argument(expected, given);
  if (Py_TYPE(expected) != Py_TYPE(given) || PySequence_Fast_GET_SIZE(expected) != PySequence_Fast_GET_SIZE(given))
    return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(expected); ++i)
    if (!are_arguments(PySequence_Fast_GET_ITEM(expected, i), PySequence_Fast_GET_ITEM(given, i), tensors))
      return false;
  return true;
}

bool are_named(PyObject* expected, PyObject* given, PyObject* tensors) {
  if (!PyDict_Check(given) || PyDict_GET_SIZE(expected) != PyDict_GET_SIZE(given)) return false;
  PyObject *name, *value;
  for (Py_ssize_t i = 0; PyDict_Next(expected, &i, &name, &value);) {
    PyObject* found = PyDict_GetItemWithError(given, name);
    if (found == nullptr || !are_arguments(value, found, tensors)) return false;
  }
  return true;
}

// Whether a tensor lies at a place of its storage.
bool lies_at(PyObject* tensor, PyObject* place) {
  const Names& names = known->names;
  PyObject* layout = PyTuple_GET_ITEM(place, 0);
  return is_same(attribute(tensor, names.shape), PyTuple_GET_ITEM(layout, 0)) &&
         is_same(called(tensor, names.stride), PyTuple_GET_ITEM(layout, 1)) &&
         is_same(called(tensor, names.storage_offset), PyTuple_GET_ITEM(place, 1));
}

// Whether the elements at a place are among those of a region, as Region.reaches has it.
bool reaches(PyObject* region, PyObject* place) {
  PyObject *layout = PyTuple_GET_ITEM(place, 0), *start = known->region_start.of(region);
  if (is_same(Ref::to(known->region_layout.of(region)), layout) && is_same(Ref::to(start), PyTuple_GET_ITEM(place, 1)))
    return true;
  if (known->region_dense.of(region) != Py_True) return false;
  const long long first = PyLong_AsLongLong(start), from = PyLong_AsLongLong(PyTuple_GET_ITEM(place, 1));
  long long last = from;
  PyObject *shape = PyTuple_GET_ITEM(layout, 0), *strides = PyTuple_GET_ITEM(layout, 1);
  for (Py_ssize_t d = 0; d < PyTuple_GET_SIZE(shape); ++d)
    last += (PyLong_AsLongLong(PyTuple_GET_ITEM(shape, d)) - 1) * PyLong_AsLongLong(PyTuple_GET_ITEM(strides, d));
  return first <= from && last < first + PyLong_AsLongLong(known->region_numel.of(region));
}

// The weak reference to the region that a tensor is restored from, as _Operands._stored finds it; null, without an error,
// where there is none.
Ref region_of(NotedCalls* self, PyObject* address, PyObject* read, PyObject* version) {
  PyObject* entry = PyDict_GetItemWithError(at(self, NotedCalls::kEntries), address);
  PyObject* regions = entry == nullptr ? nullptr : known->entry_regions.of(entry);
  for (Py_ssize_t i = 0; regions != nullptr && i < PyList_GET_SIZE(regions); ++i) {
    Ref region = object_of(PyList_GET_ITEM(regions, i));
    if (region && is_held(region.get()) && known->region_dtype.of(region.get()) == known->read_dtype.of(read) &&
        is_same(Ref::to(known->region_version.of(region.get())), version) &&
        is_same(Ref::to(known->region_lazy.of(region.get())), known->as_in_memory) &&
        reaches(region.get(), known->read_place.of(read)))
      return Ref::to(PyList_GET_ITEM(regions, i));
  }
  return Ref();
}

// Whether a set or a map of storages, by address, has one. True where that cannot be told, with an error.
bool has_address(NotedCalls* self, NotedCalls::Member which, PyObject* address) {
  return PyDict_Contains(at(self, which), address) != 0;
}

// The operand for a tensor, as the template has it; null where it is another one.
Ref operand_of(NotedCalls* self, PyObject* read, PyObject* tensor, bool overwritten) {
  const auto kind = static_cast<Kind>(PyLong_AsLong(known->read_kind.of(read)));
  if (kind == kUnread) return Ref::to(Py_None);
  PyObject* place = known->read_place.of(read);
  if (!has(tensor, known->names.dtype, known->read_dtype.of(read)) || !lies_at(tensor, place) ||
      !is_as_in_memory(tensor))
    return Ref();
  Ref storage;
  Ref address = address_of(tensor, &storage);
  if (!address || has_address(self, NotedCalls::kExposed, address.get()) ||
      has_address(self, NotedCalls::kParts, address.get()))
    return Ref();
  Ref version = attribute(tensor, known->names._version);
  if (version && overwritten) version = Ref(PyLong_FromLongLong(PyLong_AsLongLong(version.get()) - 1));
  if (!version) return Ref();
  Ref region = region_of(self, address.get(), read, version.get());
  if (PyErr_Occurred() || static_cast<bool>(region) != (kind == kStored)) return Ref();
  if (kind == kStored)
    return object_with(known->stored, known->stored_region, region.get(), known->stored_place, place);
  Ref formula = Ref::to(PyDict_GetItemWithError(at(self, NotedCalls::kFormulas), address.get()));
  if (kind == kMade) {
    // The formulas of a noted result have one place and dtype.
    if (!formula || known->formula_noted.of(formula.get()) != known->read_noted.of(read) ||
        !is_same(Ref::to(known->formula_version.of(formula.get())), version.get()))
      return Ref();
    return object_with(known->made, known->made_formula, formula.get(), known->made_place, place);
  }
  if (formula || overwritten) return Ref();
  PyObject* holder = PyDict_GetItemWithError(at(self, NotedCalls::kHolders), address.get());
  PyObject* before = known->read_holder.of(read);
  if (holder == nullptr ? before != Py_None : !is_same(Ref::to(holder), before)) return Ref();
  if (holder == nullptr && Py_IS_TYPE(tensor, known->parameter)) return Ref();
  Ref copy;
  if (kind == kCopied) {
    Ref alias = called(tensor, known->names.detach);
    if (alias) copy = called(alias.get(), known->names.clone);
    if (!copy) return Ref();
  }
  Ref kept = kept_of(kind == kCopied ? copy.get() : tensor);
  return kept ? object_with(known->there, known->there_kept, kept.get()) : std::move(kept);
}

// The operand for the statistics by which the input of the norm that has returned is stored; null where these are not the
// norm's.
Ref statistics_of(PyObject* read, PyObject* operands) {
  if (static_cast<Kind>(PyLong_AsLong(known->read_kind.of(read))) != kStatistics) return Ref();
  Ref found(PyObject_CallOneArg(known->hold_statistics, PyTuple_GET_ITEM(operands, 0)));
  return found && found.get() != Py_None ? std::move(found) : Ref();
}

// The formula of a call's result, by the template of the forward before; null where the call is another one.
Ref formula_of(NotedCalls* self, PyObject* call, PyObject* noted, PyObject* template_, PyObject* output) {
  Ref tensors(PyList_New(0));
  if (!tensors || !are_arguments(known->template_args.of(template_), known->call_args.of(call), tensors.get()) ||
      !are_named(known->template_kwargs.of(template_), known->call_kwargs.of(call), tensors.get()))
    return Ref();
  PyObject *reads = known->template_reads.of(template_), *like = known->template_formula.of(template_);
  const Py_ssize_t count = PyTuple_GET_SIZE(reads);
  PyObject* arguments = known->call_arguments.of(call);
  const Py_ssize_t given = PyList_GET_SIZE(tensors.get());  // a norm's statistics are beside them
  if (given == 0 || (given != count && given + 1 != count) || PyList_GET_SIZE(arguments) == 0) return Ref();
  PyObject* overwritten = PyList_GET_ITEM(arguments, 0) == output ? output : nullptr;
  if ((overwritten != nullptr) != (known->template_overwrites.of(template_) == Py_True)) return Ref();
  if (!has(output, known->names.dtype, known->formula_dtype.of(like)) ||
      !lies_at(output, known->formula_place.of(like)))
    return Ref();
  if (!is_same(Ref(PyObject_CallOneArg(known->get_autocast, output)), known->formula_autocast.of(like))) return Ref();
  Ref version = attribute(output, known->names._version);
  if (!version) return version;
  Ref operands(PyTuple_New(count));
  for (Py_ssize_t i = 0; operands && i < count; ++i) {
    PyObject *read = PyTuple_GET_ITEM(reads, i), *tensor = i < given ? PyList_GET_ITEM(tensors.get(), i) : nullptr;
    Ref operand =
        tensor == nullptr ? statistics_of(read, operands.get()) : operand_of(self, read, tensor, tensor == overwritten);
    if (!operand) return Ref();
    PyTuple_SET_ITEM(operands.get(), i, operand.release());
  }
  Ref formula = copy_of(like);
  if (!formula) return Ref();
  untrack(operands.get());
  known->formula_noted.set(formula.get(), Ref::to(noted));
  known->formula_operands.set(formula.get(), std::move(operands));
  known->formula_version.set(formula.get(), std::move(version));
  untrack(formula.get());
  return formula;
}

// Puts the formula of a storage's content in the map, as StorageMap.put does. 1: done; 0: left to Python; -1: error.
int put(NotedCalls* self, PyObject* output, PyObject* formula) {
  Ref storage;
  Ref address = address_of(output, &storage);
  PyObject* formulas = at(self, NotedCalls::kFormulas);
  if (!address) return 0;
  if (!has_address(self, NotedCalls::kFormulas, address.get())) {
    if (PyDict_GET_SIZE(formulas) >= kRoom) {
      PyObject* given[] = {storage.get(), formula};
      return Ref(PyObject_Vectorcall(at(self, NotedCalls::kPut), given, 2, nullptr)) ? 1 : -1;
    }
    if (!called(storage.get(), known->names._weak_ref)) return -1;  // the map gives it back
  }
  return PyDict_SetItem(formulas, address.get(), formula) == 0 ? 1 : -1;
}

// Notes a result as the forward before did. 1: done; 0: left to Python; -1: error.
int note_as_before(NotedCalls* self, PyObject* call, PyObject* before, PyObject* output) {
  if (!Py_IS_TYPE(before, known->noted) || known->noted_function.of(before) != known->call_function.of(call)) return 0;
  PyObject* arguments = known->call_arguments.of(call);
  bool plain = is_real(output) && PyList_CheckExact(arguments);
  for (Py_ssize_t i = 0; plain && i < PyList_GET_SIZE(arguments); ++i) plain = is_real(PyList_GET_ITEM(arguments, i));
  if (!plain) return 0;
  if (known->noted_used.of(before) == Py_True) {
    Ref template_ = Ref::to(known->noted_template.of(before));  // which another thread may replace
    if (template_.get() == Py_None) return 0;
    Ref formula = formula_of(self, call, before, template_.get(), output);
    if (!formula) return PyErr_Occurred() && !cannot_tell() ? -1 : 0;
    const int done = put(self, output, formula.get());
    if (done <= 0) return done;
  }
  return PyList_Append(at(self, NotedCalls::kNoted), before) == 0 ? 1 : -1;
}

PyMemberDef attributes[] = {
    {kNotedMembers[NotedCalls::kBefore], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kBefore), 0, nullptr},
    {kNotedMembers[NotedCalls::kNoted], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kNoted), 0, nullptr},
    {kNotedMembers[NotedCalls::kFormulas], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kFormulas), 0, nullptr},
    {kNotedMembers[NotedCalls::kEntries], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kEntries), 0, nullptr},
    {kNotedMembers[NotedCalls::kExposed], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kExposed), 0, nullptr},
    {kNotedMembers[NotedCalls::kParts], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kParts), 0, nullptr},
    {kNotedMembers[NotedCalls::kHolders], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kHolders), 0, nullptr},
    {kNotedMembers[NotedCalls::kPut], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kPut), 0, nullptr},
    {kNotedMembers[NotedCalls::kLast], T_OBJECT, Holder<NotedCalls>::offset_of(NotedCalls::kLast), 0, nullptr},
    {"fully", T_BOOL, offsetof(NotedCalls, fully), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_members, attributes},
    {Py_tp_traverse, reinterpret_cast<void*>(Holder<NotedCalls>::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(Holder<NotedCalls>::clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Holder<NotedCalls>::deallocate)},
    {0, nullptr},
};
PyType_Spec spec = {"actcore._native.NotedCalls", sizeof(NotedCalls), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

bool is_noted_calls(PyObject* object) {
  if (known == nullptr || !PyObject_TypeCheck(object, noted_type)) return false;
  for (PyObject* member : reinterpret_cast<NotedCalls*>(object)->members)
    if (member == nullptr) return false;
  return true;
}

bool note_call(PyObject* formulas, PyObject* call, PyObject* outputs) {
  if (!is_noted_calls(formulas)) {
    PyErr_Format(PyExc_TypeError, "note must be a NotedCalls with all of its attributes, got %R", formulas);
    return false;
  }
  auto* self = reinterpret_cast<NotedCalls*>(formulas);
  if (PyList_GET_SIZE(outputs) != 1) return true;
  PyObject *before = at(self, NotedCalls::kBefore), *noted = at(self, NotedCalls::kNoted);
  if (!self->fully && PyList_CheckExact(before) && PyList_CheckExact(noted) &&
      PyList_GET_SIZE(noted) < PyList_GET_SIZE(before)) {
    Ref one = Ref::to(PyList_GET_ITEM(before, PyList_GET_SIZE(noted)));
    const int done = note_as_before(self, call, one.get(), PyList_GET_ITEM(outputs, 0));
    if (done != 0) return done > 0;
  }
  PyObject* given[] = {formulas, call, outputs};
  return static_cast<bool>(Ref(PyObject_VectorcallMethod(known->names.note, given, 3, nullptr)));
}

void bind_formulas(py::module_& module) {
  noted_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  module.add_object("NotedCalls", reinterpret_cast<PyObject*>(noted_type));
}

}  // namespace actcore
