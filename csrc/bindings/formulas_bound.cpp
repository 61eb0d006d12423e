// How backward computes a formula of integrations' runtime: what holds its operands until then, and the call.
#include <algorithm>

#include "bindings/formulas.h"
#include "bindings/replay_stores.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

constexpr long kExact = 64;  // the bits of an operand that is exact, as EXACT in formula.py

// What holds an operand, and its bits; None where it is gone; null with an error.
Ref held_of(PyObject* operand, long* bits) {
  *bits = kExact;
  if (Py_IS_TYPE(operand, known->there)) {
    PyObject* kept = known->there_kept.of(operand);
    const bool same =
        is_same(attribute(known->kept_tensor.of(kept), known->names._version), known->kept_version.of(kept));
    return Ref::to(same ? kept : Py_None);
  }
  if (Py_IS_TYPE(operand, known->made)) {
    Ref bound = bound_of(known->made_formula.of(operand));
    if (!bound || bound.get() == Py_None) return bound;
    *bits = PyLong_AsLong(known->bound_bits.of(bound.get()));
    return object_with(known->inner, known->inner_bound, bound.get(), known->inner_place,
                       known->made_place.of(operand));
  }
  if (Py_IS_TYPE(operand, known->stored)) {
    Ref region = object_of(known->stored_region.of(operand));
    if (!region || !is_held(region.get())) return Ref::to(Py_None);
    Ref own(PyObject_CallOneArg(known->get_bits, region.get()));
    if (!own) return own;
    *bits = PyLong_AsLong(own.get());
    PyObject* place = known->stored_place.of(operand);
    Ref view =
        object_with(known->view, known->view_region, region.get(), known->view_layout, PyTuple_GET_ITEM(place, 0));
    if (!view) return view;
    known->view_offset.set(view.get(), Ref::to(PyTuple_GET_ITEM(place, 1)));
    known->view_sign.set(view.get(), Ref::to(Py_False));
    known->view_waits.set(view.get(), Ref::to(Py_False));
    Ref beside(known->beside->tp_alloc(known->beside, 0));
    if (!beside) return beside;
    known->beside_view.set(beside.get(), std::move(view));
    untrack(beside.get());
    return beside;
  }
  Ref found(PyObject_CallOneArg(known->hold_whole, operand));
  if (!found || !PyTuple_Check(found.get())) return found;
  *bits = PyLong_AsLong(PyTuple_GET_ITEM(found.get(), 1));
  return Ref::to(PyTuple_GET_ITEM(found.get(), 0));
}

// A value with the operands in the places of its slots.
Ref filled(PyObject* value, PyObject* operands) {
  if (Py_IS_TYPE(value, known->slot))
    return Ref::to(PyTuple_GET_ITEM(operands, PyLong_AsSsize_t(known->slot_index.of(value))));
  if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return Ref::to(value);
  return copy_with(value, [&](PyObject* item) { return filled(item, operands); });
}

// The view at a place of the storage of a formula's result.
Ref view_at(Ref result, PyObject* formula, PyObject* place) {
  PyObject* own = known->formula_place.of(formula);
  if (!result || place == own || is_same(Ref::to(place), own)) return result;
  Ref before = called(result.get(), known->names.storage_offset);
  Ref from(before ? PyNumber_Subtract(PyTuple_GET_ITEM(place, 1), PyTuple_GET_ITEM(own, 1)) : nullptr);
  Ref offset(from ? PyNumber_Add(before.get(), from.get()) : nullptr);
  if (!offset) return Ref();
  PyObject* layout = PyTuple_GET_ITEM(place, 0);
  PyObject* given[] = {result.get(), PyTuple_GET_ITEM(layout, 0), PyTuple_GET_ITEM(layout, 1), offset.get()};
  return Ref(PyObject_VectorcallMethod(known->names.as_strided, given, 4, nullptr));
}

// Says what to do about an operand that was changed; any other error stays as it is.
void explain(PyObject* formula) {
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* given[] = {value, PyTuple_GET_ITEM(known->formula_names.of(formula), 0)};
  if (Ref(PyObject_Vectorcall(known->explain_change, given, 2, nullptr))) {
    PyErr_Restore(type, value, trace);
    return;
  }
  Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
}

// The operands of a formula, restored.
Ref restored_operands(PyObject* formula, PyObject* held) {
  const Py_ssize_t count = PyTuple_GET_SIZE(held);
  Ref operands(PyTuple_New(count));
  for (Py_ssize_t i = 0; operands && i < count; ++i) {
    PyObject* one = PyTuple_GET_ITEM(held, i);
    Ref tensor = one == Py_None ? Ref::to(one) : Ref(unpacked(one));
    if (!tensor) {
      if (!Py_IS_TYPE(one, known->inner)) explain(formula);  // which has said it
      return tensor;
    }
    PyTuple_SET_ITEM(operands.get(), i, tensor.release());
  }
  return operands;
}

// The result of a formula's function.
Ref result_of(PyObject* formula, PyObject* held) {
  Ref operands = restored_operands(formula, held);
  if (!operands) return operands;
  PyObject* call = known->formula_call.of(formula);  // function, args, kwargs
  PyObject* named = PyTuple_GET_ITEM(call, 2);
  Ref args = filled(PyTuple_GET_ITEM(call, 1), operands.get()), kwargs;
  if (!args) return args;
  if (PyMapping_Size(named) > 0) {
    kwargs = Ref(PyDict_New());
    if (!kwargs) return kwargs;
    PyObject *name, *value;
    for (Py_ssize_t i = 0; PyDict_Next(named, &i, &name, &value);) {
      Ref own = filled(value, operands.get());
      if (!own || PyDict_SetItem(kwargs.get(), name, own.get()) < 0) return Ref();
    }
  }
  Ref result(PyObject_Call(PyTuple_GET_ITEM(call, 0), args.get(), kwargs.get()));
  if (!result || is_real(result.get())) return result;
  Ref part(PyObject_CallOneArg(known->find_local, result.get()));  // of a DTensor
  return part && part.get() != Py_None ? std::move(part) : std::move(result);
}

// A result in the layout and dtype that it had in the forward.
Ref laid_out(Ref result, PyObject* formula) {
  PyObject *layout = PyTuple_GET_ITEM(known->formula_place.of(formula), 0), *dtype = known->formula_dtype.of(formula);
  if (!result || (has(result.get(), known->names.dtype, dtype) &&
                  is_same(called(result.get(), known->names.stride), PyTuple_GET_ITEM(layout, 1))))
    return result;
  PyObject* given[] = {result.get(), PyTuple_GET_ITEM(layout, 0), PyTuple_GET_ITEM(layout, 1), dtype};
  return Ref(PyObject_Vectorcall(known->lay_out, given, 4, nullptr));
}

// A block without gradients.
class NoGrad {
 public:
  NoGrad() {
    before_ = Ref(PyObject_CallNoArgs(known->grad_enabled));
    if (before_) entered_ = set(Py_False);
  }
  ~NoGrad() {
    if (!entered_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    set(before_.get());
    PyErr_Restore(type, value, trace);
  }
  NoGrad(const NoGrad&) = delete;
  // Whether it was entered; otherwise there is an error.
  explicit operator bool() const { return entered_; }

 private:
  static bool set(PyObject* on) { return static_cast<bool>(Ref(PyObject_CallOneArg(known->set_grad_enabled, on))); }
  Ref before_;
  bool entered_ = false;
};

// The result of a formula whose operands are held; null with an error.
Ref computed(PyObject* bound) {
  Ref formula = Ref::to(known->bound_formula.of(bound)), held = Ref::to(known->bound_held.of(bound));
  Block functions(Ref(PyObject_CallNoArgs(known->disable_torch_function)));
  if (!functions) return Ref();
  NoGrad grad;
  if (!grad) return Ref();
  Block autocast(Ref(PyObject_CallOneArg(known->enter_autocast, known->formula_autocast.of(formula.get()))));
  if (!autocast) return Ref();
  Ref result = Ref::to(Py_None);
  if (known->formula_after.of(formula.get()) != Py_None) result = Ref(PyObject_CallOneArg(known->compute_after, bound));
  if (result.get() == Py_None) result = result_of(formula.get(), held.get());
  return laid_out(std::move(result), formula.get());
}

// The stream on which a tensor would be used; None on the CPU. One that was computed on another stream may not be complete
// there.
Ref stream_of(PyObject* tensor) {
  if (has(tensor, known->names.is_cpu, Py_True)) return Ref::to(Py_None);
  return Ref(PyObject_CallOneArg(known->used_on, tensor));
}

// Whether what a formula lends can be used as it is.
bool is_lent(PyObject* lent) {
  if (!PyTuple_Check(lent)) return false;
  PyObject* result = PyTuple_GET_ITEM(lent, 0);
  return is_same(attribute(result, known->names._version), PyTuple_GET_ITEM(lent, 1)) &&
         is_same(stream_of(result), PyTuple_GET_ITEM(lent, 2));
}

// The result of a formula: what it lends, if nothing else was computed since and nothing was written to it.
Ref lent_result(PyObject* last, PyObject* bound) {
  Ref lent = Ref::to(known->bound_lent.of(bound));
  if (!is_lent(lent.get())) {
    lent = Ref();
    PyObject* weak = known->last_bound.of(last);  // frees what it lends before another tensor is made
    if (Ref before = weak == Py_None ? Ref() : object_of(weak)) known->bound_lent.set(before.get(), Ref::to(Py_None));
    known->last_bound.set(last, Ref::to(Py_None));
    Ref result = computed(bound);
    Ref version = result ? attribute(result.get(), known->names._version) : Ref();
    Ref stream = version ? stream_of(result.get()) : Ref();
    lent = Ref(stream ? PyTuple_Pack(3, result.get(), version.get(), stream.get()) : nullptr);
    if (!lent) return Ref();
  }
  Ref result = Ref::to(PyTuple_GET_ITEM(lent.get(), 0));
  const bool awaited = PyLong_AsLong(known->bound_waiting.of(bound)) > 0;
  Ref weak(awaited ? PyWeakref_NewRef(bound, nullptr) : nullptr);
  if (awaited && !weak) return Ref();
  if (awaited) known->last_bound.set(last, std::move(weak));
  known->bound_lent.set(bound, awaited ? std::move(lent) : Ref::to(Py_None));
  return result;
}

PyObject* type_error(const char* text) {
  PyErr_SetString(PyExc_TypeError, text);
  return nullptr;
}

PyObject* recompute(PyObject*, PyObject* recomputed) {
  if (known == nullptr || !PyObject_TypeCheck(recomputed, known->recomputed))
    return type_error("recompute takes a Recomputed");
  return recomputed_tensor(recomputed).release();
}

PyObject* hold_operands(PyObject*, PyObject* formula) {
  if (known == nullptr || !Py_IS_TYPE(formula, known->formula)) return type_error("hold_operands takes a Formula");
  return bound_of(formula).release();
}

PyObject* hold_operand(PyObject*, PyObject* operand) {
  if (known == nullptr) return type_error("hold_operand may be called after bind_replay");
  long bits = 0;
  Ref held = held_of(operand, &bits);
  if (!held || held.get() == Py_None) return held.release();
  return Py_BuildValue("(Ol)", held.get(), bits);
}

PyMethodDef recomputing = {"recompute", with_one<recompute>, METH_O,
                           "The tensor in whose place autograd holds a Recomputed."};
PyMethodDef holding = {"hold_operands", with_one<hold_operands>, METH_O,
                       "A formula with its operands held; None where one is gone."};
PyMethodDef holding_one = {"hold_operand", with_one<hold_operand>, METH_O,
                           "What holds an operand, and its bits; None where it is gone."};

}  // namespace

Ref bound_of(PyObject* formula) {
  PyObject* weak = known->formula_bound.of(formula);
  if (weak != Py_None)
    if (Ref bound = object_of(weak)) return bound;
  PyObject* operands = known->formula_operands.of(formula);
  const Py_ssize_t count = PyTuple_GET_SIZE(operands);
  Ref held(PyTuple_New(count));
  long least = kExact;
  for (Py_ssize_t i = 0; held && i < count; ++i) {
    long bits = 0;
    if (PyTuple_GET_ITEM(operands, i) == Py_None) {  // an argument that the formula does not read
      PyTuple_SET_ITEM(held.get(), i, Py_NewRef(Py_None));
      continue;
    }
    Ref one = held_of(PyTuple_GET_ITEM(operands, i), &bits);
    if (!one || one.get() == Py_None) return one;
    least = std::min(least, bits);
    PyTuple_SET_ITEM(held.get(), i, one.release());
  }
  if (!held || PyErr_Occurred()) return Ref();
  if (known->formula_exactly.of(formula) == Py_True && least < kExact) return Ref::to(Py_None);
  untrack(held.get());
  Ref bound = object_with(known->bound, known->bound_formula, formula, known->bound_held, held.get());
  Ref reference(bound ? PyWeakref_NewRef(bound.get(), nullptr) : nullptr);
  if (!reference) return reference;
  known->bound_bits.set(bound.get(), Ref(PyLong_FromLong(least)));
  known->bound_waiting.set(bound.get(), Ref(PyLong_FromLong(0)));
  known->bound_lent.set(bound.get(), Ref::to(Py_None));
  known->formula_bound.set(formula, std::move(reference));
  PyObject* noted = known->formula_noted.of(formula);
  if (noted != Py_None) known->noted_used.set(noted, Ref::to(Py_True));
  return bound;
}

Ref recomputed_tensor(PyObject* recomputed) {
  Ref bound = Ref::to(known->recomputed_bound.of(recomputed)), last = Ref::to(known->recomputed_last.of(recomputed));
  if (known->recomputed_waits.of(recomputed) == Py_True) {
    known->recomputed_waits.set(recomputed, Ref::to(Py_False));
    const long waiting = PyLong_AsLong(known->bound_waiting.of(bound.get()));
    known->bound_waiting.set(bound.get(), Ref(PyLong_FromLong(waiting - 1)));
  }
  Ref place = Ref::to(known->recomputed_place.of(recomputed));
  return view_at(lent_result(last.get(), bound.get()), known->bound_formula.of(bound.get()), place.get());
}

Ref inner_tensor(PyObject* inner) {
  PyObject* bound = known->inner_bound.of(inner);
  return view_at(computed(bound), known->bound_formula.of(bound), known->inner_place.of(inner));
}

void bind_bound(py::module_& module) {
  module.add_object("recompute", PyCFunction_New(&recomputing, nullptr));
  module.add_object("hold_operands", PyCFunction_New(&holding, nullptr));
  module.add_object("hold_operand", PyCFunction_New(&holding_one, nullptr));
}

}  // namespace actcore
