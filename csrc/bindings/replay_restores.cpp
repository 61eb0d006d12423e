// How a saved tensor comes back that is kept, or one codec's call away.
#include "bindings/formulas.h"
#include "bindings/replay_stores.h"

namespace actcore {
namespace {

// Whether a stored form is of a codec that is known here.
bool is_known(PyObject* codec) {
  return Py_IS_TYPE(codec, known->group_affine) || Py_IS_TYPE(codec, known->standardized) ||
         Py_IS_TYPE(codec, known->bit_mask) || Py_IS_TYPE(codec, known->positive) || Py_IS_TYPE(codec, known->narrow);
}

Ref pair_of(Ref first, Ref second) { return first && second ? Ref(PyTuple_Pack(2, first.get(), second.get())) : Ref(); }

// The elements of a stored form, one after the other.
Ref elements_of(PyObject* stored, PyObject* codec, PyObject* numel) {
  const Names& names = known->names;
  Ref payload = attribute(stored, names.payload);
  if (!payload) return Ref();
  PyObject* first = PyTuple_GET_ITEM(payload.get(), 0);
  if (Py_IS_TYPE(codec, known->group_affine)) {
    Ref bits = attribute(codec, names.bits), group = attribute(codec, names.group_size);
    PyObject* function = known->decompress.of(first);
    Below below(function);
    if (!bits || !group || !below) return Ref();
    PyObject* given[] = {first, PyTuple_GET_ITEM(payload.get(), 1), numel, bits.get(), group.get()};
    return Ref(PyObject_Vectorcall(function, given, 5, nullptr));
  }
  if (Py_IS_TYPE(codec, known->standardized)) {
    Ref bits = attribute(codec, names.bits), group = attribute(codec, names.group_size);
    Ref groups = attribute(codec, names.groups), layout = attribute(stored, names.layout);
    if (!bits || !group || !groups || !layout) return Ref();
    PyObject* asked[] = {layout.get(), groups.get(), group.get()};
    Ref order(PyObject_Vectorcall(known->order, asked, 3, nullptr));
    if (order && !PyTuple_Check(order.get())) PyErr_SetString(PyExc_RuntimeError, "a stored form has another layout");
    if (PyErr_Occurred()) return Ref();
    PyObject* function = known->destandardize.of(first);
    Below below(function);
    if (!below) return Ref();
    PyObject* given[] = {first,
                         PyTuple_GET_ITEM(payload.get(), 1),
                         PyTuple_GET_ITEM(payload.get(), 2),
                         numel,
                         PyTuple_GET_ITEM(order.get(), 0),
                         PyTuple_GET_ITEM(order.get(), 1),
                         bits.get(),
                         group.get()};
    return Ref(PyObject_Vectorcall(function, given, 8, nullptr));
  }
  const bool mask = Py_IS_TYPE(codec, known->bit_mask), narrow = Py_IS_TYPE(codec, known->narrow);
  Ref values = narrow ? pair_of(attribute(codec, names.low), attribute(codec, names.high))
               : mask ? attribute(codec, names.values)
                      : Ref(Py_BuildValue("(ii)", 0, 1));
  Ref dtype = attribute(stored, names.dtype);
  PyObject* function = (narrow ? known->widen : known->spread).of(first);
  Below below(function);
  if (!values || !dtype || !below) return Ref();
  PyObject* given[] = {first, numel, dtype.get(), PyTuple_GET_ITEM(values.get(), 0), PyTuple_GET_ITEM(values.get(), 1)};
  return Ref(PyObject_Vectorcall(function, given, 5, nullptr));
}

// A tensor that is kept as it is; one that was changed since is left to Kept.unpack, which says so.
PyObject* kept_tensor(PyObject* kept) {
  PyObject* tensor = known->kept_tensor.of(kept);
  if (!is_same(attribute(tensor, known->names._version), known->kept_version.of(kept)))
    return PyObject_CallMethodNoArgs(kept, known->names.unpack);
  return Py_NewRef(tensor);
}

// Elements, one after the other, as a tensor of a layout.
Ref laid_out(Ref flat, PyObject* layout) {
  PyObject *shape = PyTuple_GET_ITEM(layout, 0), *strides = PyTuple_GET_ITEM(layout, 1);
  if (PyTuple_GET_SIZE(strides) == 1 && PyLong_AsLong(PyTuple_GET_ITEM(strides, 0)) == 1) return flat;
  PyObject* given[] = {flat.get(), shape, strides};
  return Ref(PyObject_VectorcallMethod(known->names.as_strided, given, 3, nullptr));
}

// The elements of a stored form; null with an error.
Ref restored(PyObject* stored, PyObject* codec, PyObject* layout, PyObject* numel) {
  Ref flat = elements_of(stored, codec, numel);
  return flat ? laid_out(std::move(flat), layout) : std::move(flat);
}

// Lets what another region lends go, as LastRestored.becomes does; null for no region. False: an error.
bool becomes(PyObject* last, PyObject* region) {
  Ref weak = Ref::to(known->lent_region.of(last));
  if (weak.get() != Py_None) {
    Ref before = object_of(weak.get());
    if (before && before.get() != region) known->region_lent.set(before.get(), Ref::to(Py_None));
  }
  Ref now = region == nullptr ? Ref::to(Py_None) : Ref(PyWeakref_NewRef(region, nullptr));
  if (!now) return false;
  known->lent_region.set(last, std::move(now));
  return true;
}

// Whether what a region lends is of this form, and as it was.
bool is_lent(PyObject* lent, PyObject* stored) {
  return PyTuple_Check(lent) && PyTuple_GET_ITEM(lent, 0) == stored && PyTuple_GET_ITEM(lent, 1) == Py_None &&
         is_same(attribute(PyTuple_GET_ITEM(lent, 2), known->names._version), PyTuple_GET_ITEM(lent, 3));
}

// The elements of a region on the CPU, which are lent to the views that are to come, as Region.elements does.
Ref lent_elements(PyObject* region, PyObject* stored, PyObject* codec, PyObject* layout, bool awaited) {
  PyObject* last = known->region_last.of(region);
  Ref lent = Ref::to(known->region_lent.of(region)), elements;
  if (is_lent(lent.get(), stored)) {
    elements = Ref::to(PyTuple_GET_ITEM(lent.get(), 2));
  } else {
    lent = Ref();
    known->region_lent.set(region, Ref::to(Py_None));
    if (!becomes(last, nullptr)) return Ref();  // before there is another tensor
    elements = restored(stored, codec, layout, known->region_numel.of(region));
    Ref version = elements ? attribute(elements.get(), known->names._version) : Ref();
    if (!version) return Ref();
    if (awaited) lent = Ref(PyTuple_Pack(4, stored, Py_None, elements.get(), version.get()));
    if (awaited && !lent) return Ref();
  }
  known->region_lent.set(region, awaited ? std::move(lent) : Ref::to(Py_None));
  return becomes(last, awaited ? region : nullptr) ? std::move(elements) : Ref();
}

// A view of a region's elements, as View.view_of makes it.
Ref view_of(PyObject* view, PyObject* region, Ref elements, PyObject* layout) {
  PyObject *own = known->view_layout.of(view), *offset = known->view_offset.of(view);
  PyObject* start = known->region_start.of(region);
  const bool here = is_same(Ref::to(offset), start);
  if (here && is_same(Ref::to(own), layout)) return elements;
  Ref before = called(elements.get(), known->names.storage_offset), from(PyNumber_Subtract(offset, start));
  Ref place(before && from ? PyNumber_Add(before.get(), from.get()) : nullptr);
  if (!place) return Ref();
  PyObject* given[] = {elements.get(), PyTuple_GET_ITEM(own, 0), PyTuple_GET_ITEM(own, 1), place.get()};
  return Ref(PyObject_VectorcallMethod(known->names.as_strided, given, 4, nullptr));
}

// Restores a view of a region; None where it is left to View.unpack, null with an error. For a repetition (`beside`), of
// Beside.unpack: it lends nothing, and no other view waits for it.
Ref viewed(PyObject* view, bool beside) {
  const bool sign = known->view_sign.of(view) == Py_True;
  Ref region = Ref::to(known->view_region.of(view));
  PyObject* last = known->region_last.of(region.get());
  Ref stored = Ref::to((sign ? known->region_sign : known->region_value).of(region.get()));
  if (!Py_IS_TYPE(stored.get(), known->compressed) || known->region_kept.of(region.get()) != Py_None ||
      known->region_dense.of(region.get()) != Py_True)
    return Ref::to(Py_None);
  Ref codec = attribute(stored.get(), known->names.codec), layout = attribute(stored.get(), known->names.layout);
  if (!codec || !layout) return Ref();
  const bool alone =
      known->region_lent.of(region.get()) == Py_None && (beside || known->lent_region.of(last) == Py_None);
  if (!is_known(codec.get()) || ((sign || beside) && !alone)) return Ref::to(Py_None);
  const bool waits = !beside && known->view_waits.of(view) == Py_True;
  const long others = PyLong_AsLong(known->region_waiting.of(region.get())) - waits;
  const bool lends = !sign && !beside && !(alone && others <= 0);
  // On a GPU a region lends on its own stream alone, and what is standardised may have no operator there: View.unpack
  // knows both.
  if (lends || Py_IS_TYPE(codec.get(), known->standardized)) {
    Ref payload = attribute(stored.get(), known->names.payload);
    if (!payload) return Ref();
    if (!has(PyTuple_GET_ITEM(payload.get(), 0), known->names.is_cpu, Py_True)) return Ref::to(Py_None);
  }
  if (waits) {  // before the operator, which lets other threads run
    known->view_waits.set(view, Ref::to(Py_False));
    known->region_waiting.set(region.get(), Ref(PyLong_FromLong(others)));
  }
  Ref elements = lends ? lent_elements(region.get(), stored.get(), codec.get(), layout.get(), others > 0)
                       : restored(stored.get(), codec.get(), layout.get(), known->region_numel.of(region.get()));
  return elements ? view_of(view, region.get(), std::move(elements), layout.get()) : std::move(elements);
}

// The elements of a layout without gaps, in the order of its dimensions; null, without an error, of another.
Ref numel_of(PyObject* layout) {
  PyObject *shape = PyTuple_GET_ITEM(layout, 0), *strides = PyTuple_GET_ITEM(layout, 1);
  long long numel = 1;
  for (Py_ssize_t d = PyTuple_GET_SIZE(shape); d-- > 0;) {
    const long long size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, d));
    if (size != 1 && PyLong_AsLongLong(PyTuple_GET_ITEM(strides, d)) != numel) return Ref();
    numel *= size;
  }
  return numel == 0 ? Ref() : Ref(PyLong_FromLongLong(numel));
}

// Restores clamped values, as Held.unpack does; None where it is left to that, null with an error.
Ref unclamped(PyObject* held) {
  Ref stored = attribute(held, known->names.compressed);
  if (!stored || !Py_IS_TYPE(stored.get(), known->compressed)) return stored ? Ref::to(Py_None) : Ref();
  Ref codec = attribute(stored.get(), known->names.codec), layout = attribute(stored.get(), known->names.layout);
  if (!codec || !layout) return Ref();
  Ref numel = numel_of(layout.get());
  if (!numel || !Py_IS_TYPE(codec.get(), known->group_affine)) return PyErr_Occurred() ? Ref() : Ref::to(Py_None);
  return restored(stored.get(), codec.get(), layout.get(), numel.get());
}

}  // namespace

PyObject* unpacked(PyObject* packed) {
  if (Py_IS_TYPE(packed, known->kept)) return kept_tensor(packed);
  if (Py_IS_TYPE(packed, known->exact_type)) return kept_tensor(known->exact_kept.of(packed));
  if (Py_IS_TYPE(packed, known->recomputed)) return recomputed_tensor(packed).release();
  if (Py_IS_TYPE(packed, known->inner)) return inner_tensor(packed).release();
  const bool view = Py_IS_TYPE(packed, known->view), beside = Py_IS_TYPE(packed, known->beside);
  if (view || beside || Py_IS_TYPE(packed, known->clamped)) {
    Ref found = view ? viewed(packed, false) : beside ? viewed(known->beside_view.of(packed), true) : unclamped(packed);
    if (found.get() != Py_None) return found.release();
  }
  return PyObject_CallMethodNoArgs(packed, known->names.unpack);
}

}  // namespace actcore
