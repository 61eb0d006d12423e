// How a saved tensor comes back that is one codec's call away, and that nobody else is to be lent.
#include "bindings/replay_stores.h"

namespace actcore {
namespace {

// Whether a view reads a stored form that this made, and nobody else is to be lent what comes of it.
bool is_alone(PyObject* view, PyObject* region, PyObject* stored) {
  PyObject* last = known->region_last.of(region);
  if (!Py_IS_TYPE(stored, known->compressed) || known->region_kept.of(region) != Py_None ||
      known->lent_region.of(last) != Py_None || !has(stored, known->names.layout, known->view_layout.of(view)))
    return false;
  if (known->view_sign.of(view) == Py_True) return true;
  return known->view_waits.of(view) == Py_True && known->region_lent.of(region) == Py_None &&
         PyLong_AsLong(known->region_waiting.of(region)) == 1;
}

// Whether a stored form is of a codec that is known here.
bool is_known(PyObject* codec) {
  return Py_IS_TYPE(codec, known->group_affine) || Py_IS_TYPE(codec, known->standardized) ||
         Py_IS_TYPE(codec, known->bit_mask) || Py_IS_TYPE(codec, known->positive);
}

// The elements of a stored form, one after the other.
Ref elements_of(PyObject* stored, PyObject* codec, PyObject* region) {
  const Names& names = known->names;
  Ref payload = attribute(stored, names.payload);
  if (!payload) return Ref();
  PyObject* numel = known->region_numel.of(region);
  if (Py_IS_TYPE(codec, known->group_affine)) {
    Ref bits = attribute(codec, names.bits), group = attribute(codec, names.group_size);
    Below below;
    if (!bits || !group || !below) return Ref();
    PyObject* given[] = {PyTuple_GET_ITEM(payload.get(), 0), PyTuple_GET_ITEM(payload.get(), 1), numel, bits.get(),
                         group.get()};
    return Ref(PyObject_Vectorcall(known->decompress, given, 5, nullptr));
  }
  if (Py_IS_TYPE(codec, known->standardized)) {
    Ref bits = attribute(codec, names.bits), group = attribute(codec, names.group_size);
    Ref groups = attribute(codec, names.groups), layout = attribute(stored, names.layout);
    if (!bits || !group || !groups || !layout) return Ref();
    PyObject* asked[] = {layout.get(), groups.get(), group.get()};
    Ref order(PyObject_Vectorcall(known->order, asked, 3, nullptr));
    if (order && !PyTuple_Check(order.get())) PyErr_SetString(PyExc_RuntimeError, "a stored form has another layout");
    if (PyErr_Occurred()) return Ref();
    Below below;
    if (!below) return Ref();
    PyObject* given[] = {PyTuple_GET_ITEM(payload.get(), 0),
                         PyTuple_GET_ITEM(payload.get(), 1),
                         PyTuple_GET_ITEM(payload.get(), 2),
                         numel,
                         PyTuple_GET_ITEM(order.get(), 0),
                         PyTuple_GET_ITEM(order.get(), 1),
                         bits.get(),
                         group.get()};
    return Ref(PyObject_Vectorcall(known->destandardize, given, 8, nullptr));
  }
  const bool mask = Py_IS_TYPE(codec, known->bit_mask);
  Ref values = mask ? attribute(codec, names.values) : Ref(Py_BuildValue("(ii)", 0, 1));
  Ref dtype = attribute(stored, names.dtype);
  Below below;
  if (!values || !dtype || !below) return Ref();
  PyObject* given[] = {PyTuple_GET_ITEM(payload.get(), 0), numel, dtype.get(), PyTuple_GET_ITEM(values.get(), 0),
                       PyTuple_GET_ITEM(values.get(), 1)};
  return Ref(PyObject_Vectorcall(known->spread, given, 5, nullptr));
}

}  // namespace

PyObject* unpacked(PyObject* packed) {
  const Names& names = known->names;
  if (!Py_IS_TYPE(packed, known->view)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  const bool sign = known->view_sign.of(packed) == Py_True;
  Ref region = Ref::to(known->view_region.of(packed));
  Ref stored = Ref::to((sign ? known->region_sign : known->region_value).of(region.get()));
  if (!is_alone(packed, region.get(), stored.get())) return PyObject_CallMethodNoArgs(packed, names.unpack);
  Ref codec = attribute(stored.get(), names.codec);
  if (!codec) return nullptr;
  if (!is_known(codec.get())) return PyObject_CallMethodNoArgs(packed, names.unpack);
  if (!sign) {  // before the operator, which lets other threads run
    known->view_waits.set(packed, Ref::to(Py_False));
    known->region_waiting.set(region.get(), Ref(PyLong_FromLong(0)));
  }
  Ref flat = elements_of(stored.get(), codec.get(), region.get());
  if (!flat) return nullptr;
  PyObject* layout = known->view_layout.of(packed);
  PyObject *shape = PyTuple_GET_ITEM(layout, 0), *strides = PyTuple_GET_ITEM(layout, 1);
  if (PyTuple_GET_SIZE(strides) == 1 && PyLong_AsLong(PyTuple_GET_ITEM(strides, 0)) == 1) return flat.release();
  PyObject* given[] = {flat.get(), shape, strides};
  return PyObject_VectorcallMethod(names.as_strided, given, 3, nullptr);
}

}  // namespace actcore
