#include "bindings/repeats.h"

#include <stdexcept>
#include <string>

#include "bindings/replay_stores.h"
#include "bindings/segments.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {

std::unique_ptr<Repeats> repeats;

Repeats::Repeats(const py::dict& given) {
  const auto type = [&](const char* name) { return type_in(given.ptr(), name); };
  const auto object = [&](const char* name) { return object_in(given.ptr(), name); };
  geometry = type("Geometry"), version = type("Version"), reference = type("Reference"), outer = type("Outer");
  call = type("RepeatedCall"), held_tensor = type("HeldTensor"), elsewhere = type("Elsewhere");
  scratch = type("Scratch");
  make_lock = object("RLock"), is_retained = object("is_retained");
  here = object("here"), below = object("below_autograd"), disable_autocast = object("DisableAutocast");
  dispatch_modes = object("dispatch_modes"), as_strided = object("as_strided"), empty = object("EMPTY");
  used_up = object("USED_UP"), require_memory = object("require_memory"), tensors_in = object("tensors_in");
  aside = object("aside");
  version_counter = {version, "_counter"}, version_found = {version, "_found"};
  reference_value = {reference, "value"}, reference_geometry = {reference, "geometry"};
  outer_place = {outer, "place"}, outer_lies = {outer, "lies"};
  call_function = {call, "function"}, call_args = {call, "args"}, call_kwargs = {call, "kwargs"};
  call_makes = {call, "makes"}, call_changes = {call, "changes"}, call_takes = {call, "takes"};
  call_draws = {call, "draws"}, call_grad = {call, "grad"}, call_shapes = {call, "shapes"};
  held_packed = {held_tensor, "packed"}, elsewhere_made = {elsewhere, "made"}, scratch_like = {scratch, "like"};
  for (PyTypeObject* made : {version, held_tensor, elsewhere, scratch})
    if (!has_slots_alone(made))
      throw std::invalid_argument(std::string(made->tp_name) + " must have __slots__ and no base with fields");
}

bool Grad::set(PyObject* enabled) {
  if (enabled == now_) return true;
  if (!Ref(PyObject_CallOneArg(known->set_grad_enabled, enabled))) return false;
  now_ = enabled;
  return true;
}

Repeating::Repeating()
    : below_(Ref(PyObject_CallNoArgs(repeats->below))),
      autocast_(below_ ? Ref(PyObject_CallNoArgs(repeats->disable_autocast)) : Ref()) {
  if (!below_ || !autocast_) return;
  before_ = attribute(repeats->here, repeats->repeating);
  enabled_ = before_ ? Ref(PyObject_CallNoArgs(known->grad_enabled)) : Ref();
  entered_ = enabled_ && PyObject_SetAttr(repeats->here, repeats->repeating, Py_True) == 0;
}

bool Repeating::leave() {
  if (!entered_) return true;
  entered_ = false;
  const bool left = PyObject_SetAttr(repeats->here, repeats->repeating, before_.get()) == 0;
  return static_cast<bool>(Ref(PyObject_CallOneArg(known->set_grad_enabled, enabled_.get()))) && left;
}

Repeating::~Repeating() {
  if (!entered_) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (!leave()) PyErr_WriteUnraisable(repeats->here);
  PyErr_Restore(type, value, trace);
}

namespace {

PyObject* part(PyObject* geometry, int which) { return PyTuple_GET_ITEM(geometry, which); }

// Whether a tensor holds numbers of a geometry's dtype as they are read, so that a view by strides is what it says.
bool is_plainly(PyObject* base, PyObject* geometry) {
  return part(geometry, 4) == Py_False && part(geometry, 5) == Py_False && is_real(base) &&
         has(base, known->names.dtype, part(geometry, 3)) && is_same(called(base, known->names.is_conj), Py_False) &&
         is_same(called(base, known->names.is_neg), Py_False);
}

bool lies_so(PyObject* base, PyObject* geometry) {
  return is_same(attribute(base, known->names.shape), part(geometry, 0)) &&
         is_same(called(base, known->names.stride), part(geometry, 1)) &&
         is_same(called(base, known->names.storage_offset), part(geometry, 2));
}

// The tensor of a geometry in the storage of another one: that itself, if it lies so, and `same` allows it.
Ref view_of(PyObject* geometry, PyObject* base, bool same) {
  if (!is_plainly(base, geometry)) return Ref(PyObject_CallMethodOneArg(geometry, repeats->view, base));
  if (same && lies_so(base, geometry)) return Ref::to(base);
  PyObject* given[] = {base, part(geometry, 0), part(geometry, 1), part(geometry, 2)};
  return Ref(PyObject_Vectorcall(repeats->as_strided, given, 4, nullptr));
}

// A tensor that was kept for a repetition. An error, if its memory was given back, as that of sharded parameters is.
Ref with_memory(Ref tensor) {
  if (!tensor) return tensor;
  if (is_real(tensor.get())) {
    Ref storage = called(tensor.get(), known->names.untyped_storage);
    Ref nbytes = storage ? called(storage.get(), known->names.nbytes) : Ref();
    if (nbytes && PyLong_AsLongLong(nbytes.get()) > 0) return tensor;
    if (!nbytes && !cannot_tell()) return Ref();
  }
  return Ref(PyObject_CallOneArg(repeats->require_memory, tensor.get()));
}

// The tensor that a segment was given from outside of it.
Ref outer_tensor(PyObject* given) {
  if (Py_IS_TYPE(given, repeats->held_tensor)) return with_memory(Ref(unpacked(repeats->held_packed.of(given))));
  if (Py_IS_TYPE(given, repeats->elsewhere)) return called(repeats->elsewhere_made.of(given), known->names.unpack);
  if (Py_IS_TYPE(given, repeats->scratch)) return called(repeats->scratch_like.of(given), known->names.clone);
  PyErr_Format(PyExc_RuntimeError, "a repeated operator must be given a tensor, got %R", given);
  return Ref();
}

// An argument of a call, with tensors in the places of what stands for these. `same`: the call overwrites nothing.
Ref resolved(PyObject* argument, PyObject* made, PyObject* given, bool same) {
  if (Py_IS_TYPE(argument, repeats->reference)) {
    PyObject* value = repeats->reference_value.of(argument);
    Ref base = Ref::to(PyDict_GetItemWithError(made, value));
    if (!base && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, value);
    return base ? view_of(repeats->reference_geometry.of(argument), base.get(), same) : std::move(base);
  }
  if (Py_IS_TYPE(argument, repeats->outer)) {
    Ref own = Ref::to(PyList_GetItem(given, PyLong_AsSsize_t(repeats->outer_place.of(argument))));
    Ref tensor = own ? outer_tensor(own.get()) : Ref();
    PyObject* lies = repeats->outer_lies.of(argument);
    return tensor && lies != Py_None ? Ref(PyObject_CallOneArg(lies, tensor.get())) : std::move(tensor);
  }
  if (!PyList_CheckExact(argument) && !PyTuple_CheckExact(argument)) return Ref::to(argument);
  return copy_with(argument, [&](PyObject* item) { return resolved(item, made, given, same); });
}

// What an operator has returned, with the arguments gone.
Ref run(PyObject* call, PyObject* made, PyObject* given, bool same) {
  Ref args = resolved(repeats->call_args.of(call), made, given, same), kwargs;
  PyObject* named = repeats->call_kwargs.of(call);
  if (args && PyDict_GET_SIZE(named) != 0) {
    kwargs = Ref(PyDict_New());
    if (!kwargs) return kwargs;
    PyObject *name, *value;
    for (Py_ssize_t i = 0; PyDict_Next(named, &i, &name, &value);) {
      Ref own = resolved(value, made, given, same);
      if (!own || PyDict_SetItem(kwargs.get(), name, own.get()) < 0) return Ref();
    }
  }
  return args ? Ref(PyObject_Call(repeats->call_function.of(call), args.get(), kwargs.get())) : std::move(args);
}

}  // namespace

bool repeat_call(PyObject* call, PyObject* made, PyObject* given, Grad* grad) {
  if (repeats->call_draws.of(call) != Py_None || repeats->call_shapes.of(call) != Py_None) {
    grad->forget();
    PyObject* told[] = {call, made, given};
    return static_cast<bool>(Ref(PyObject_VectorcallMethod(repeats->repeat, told, 3, nullptr)));
  }
  PyObject *changes = repeats->call_changes.of(call), *makes = repeats->call_makes.of(call);
  if (!grad->set(repeats->call_grad.of(call))) return false;
  Ref out = run(call, made, given, PyTuple_GET_SIZE(changes) == 0);
  if (!out) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(changes); ++i) {
    PyObject *old = PyTuple_GET_ITEM(PyTuple_GET_ITEM(changes, i), 0),
             *now = PyTuple_GET_ITEM(PyTuple_GET_ITEM(changes, i), 1);
    Ref tensor = Ref::to(PyDict_GetItemWithError(made, old));
    if (!tensor && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, old);
    if (!tensor || PyDict_DelItem(made, old) < 0 || PyDict_SetItem(made, now, tensor.get()) < 0) return false;
  }
  if (PyTuple_GET_SIZE(makes) == 0) return true;
  Ref results =
      is_real(out.get()) ? Ref(PyTuple_Pack(1, out.get())) : Ref(PyObject_CallOneArg(repeats->tensors_in, out.get()));
  for (Py_ssize_t i = 0; results && i < PyTuple_GET_SIZE(makes); ++i) {
    PyObject* one = PyTuple_GET_ITEM(makes, i);
    Ref tensor(PySequence_GetItem(results.get(), PyLong_AsSsize_t(PyTuple_GET_ITEM(one, 1))));
    if (!tensor || PyDict_SetItem(made, PyTuple_GET_ITEM(one, 0), tensor.get()) < 0) return false;
  }
  return static_cast<bool>(results);
}

Ref geometry_of(PyObject* tensor) {
  const Names& names = known->names;
  Ref size = attribute(tensor, names.shape), stride = size ? called(tensor, names.stride) : Ref();
  Ref offset = stride ? called(tensor, names.storage_offset) : Ref();
  Ref dtype = offset ? attribute(tensor, names.dtype) : Ref();
  Ref conjugate = dtype ? called(tensor, names.is_conj) : Ref();
  Ref negative = conjugate ? called(tensor, names.is_neg) : Ref();
  Ref parts(negative
                ? PyTuple_Pack(6, size.get(), stride.get(), offset.get(), dtype.get(), conjugate.get(), negative.get())
                : nullptr);
  Ref given(parts ? PyTuple_Pack(1, parts.get()) : nullptr);
  Ref geometry(given ? PyTuple_Type.tp_new(repeats->geometry, given.get(), nullptr) : nullptr);
  if (geometry) untrack(geometry.get());
  return geometry;
}

Ref version_of(PyObject* tensor) {
  Ref modes(PyObject_CallNoArgs(repeats->dispatch_modes));
  if (!modes) return modes;
  if (!is_real(tensor) || PyLong_AsLong(modes.get()) != 0 || !has(tensor, repeats->is_meta, Py_False))
    return Ref(PyObject_CallOneArg(reinterpret_cast<PyObject*>(repeats->version), tensor));
  Ref found = attribute(tensor, known->names._version), counter = found ? called(tensor, known->names.detach) : Ref();
  if (!counter || PyObject_SetAttr(counter.get(), repeats->data, repeats->empty) < 0) return Ref();
  return object_with(repeats->version, repeats->version_found, found.get(), repeats->version_counter, counter.get());
}

Ref view_aside(PyObject* geometry, PyObject* base) {
  if (is_plainly(base, geometry)) return view_of(geometry, base, false);
  Ref view = attribute(geometry, repeats->view);
  PyObject* given[] = {view.get(), base};
  return view ? Ref(PyObject_Vectorcall(repeats->aside, given, 2, nullptr)) : std::move(view);
}

Ref restored_aside(PyObject* packed) {
  Ref unpack = attribute(packed, known->names.unpack);
  return unpack ? Ref(PyObject_CallOneArg(repeats->aside, unpack.get())) : std::move(unpack);
}

}  // namespace actcore
