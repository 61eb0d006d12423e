// How a saved tensor is stored that is the one that the forward before saved at this place: by one codec's call, or none.
#include "bindings/replay_stores.h"

namespace actcore {

// Detached, since the tensor may be the result of the very node that will hold this.
Ref kept_of(PyObject* tensor) {
  Ref made = new_of(known->kept);
  Ref alias = called(tensor, known->names.detach);
  Ref version = attribute(tensor, known->names._version);
  if (!made || !alias || !version) return Ref();
  known->kept_tensor.set(made.get(), std::move(alias));
  known->kept_version.set(made.get(), std::move(version));
  return made;
}

namespace {

constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15;

// As actcore.noise has it.
uint64_t mixed(uint64_t value) {
  value += kIncrement;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

// The stored form of a tensor: an actcore.Compressed.
Ref compressed(Session* self, PyObject* site, PyObject* tensor) {
  Ref elements = Ref::to(tensor);
  PyObject* flat = known->site_flat.of(site);
  if (flat != Py_None) {  // as it lies in memory
    Ref alias = called(tensor, known->names.detach);
    if (!alias) return Ref();
    PyObject* given[] = {alias.get(), PyTuple_GET_ITEM(flat, 0), PyTuple_GET_ITEM(flat, 1)};
    elements = Ref(PyObject_VectorcallMethod(known->names.as_strided, given, 3, nullptr));
    if (!elements) return Ref();
  }
  const uint64_t identity = PyLong_AsUnsignedLongLong(known->site_noise.of(site));
  Ref stream(PyLong_FromLongLong(static_cast<int64_t>(mixed(identity ^ self->step))));
  PyObject* arguments = known->site_arguments.of(site);  // bits, group size, whether stochastic, seed
  Ref payload;
  {
    Below below;
    PyObject* given[] = {elements.get(),
                         PyTuple_GET_ITEM(arguments, 0),
                         PyTuple_GET_ITEM(arguments, 1),
                         PyTuple_GET_ITEM(arguments, 2),
                         PyTuple_GET_ITEM(arguments, 3),
                         stream.get()};
    payload = Ref(PyObject_Vectorcall(known->compress, given, 6, nullptr));
  }
  if (!payload) return Ref();
  Ref made = new_of(known->compressed);
  Ref fields(PyDict_Copy(known->site_fields.of(site)));
  if (!made || !fields || PyDict_SetItem(fields.get(), known->names.payload, payload.get()) < 0 ||
      PyObject_GenericSetDict(made.get(), fields.get(), nullptr) < 0)
    return Ref();
  PyObject_GC_UnTrack(fields.get());
  return made;
}

// A region of a tensor like the one that the forward before had, which holds nothing yet.
Ref region_of(Session* self, PyObject* site, PyObject* tensor) {
  Ref region = copy_of(known->site_region.of(site));
  Ref start = called(tensor, known->names.storage_offset);
  Ref version = attribute(tensor, known->names._version);
  if (!region || !start || !version) return Ref();
  known->region_start.set(region.get(), std::move(start));
  known->region_version.set(region.get(), std::move(version));
  known->region_last.set(region.get(), Ref::to(at(self, Session::kLent)));
  return region;
}

// What autograd holds in the place of a tensor that is a whole region.
Ref view_of(PyObject* site, PyObject* region) {
  Ref view = copy_of(known->site_held.of(site));
  const long waiting = PyLong_AsLong(known->region_waiting.of(region));
  if (!view) return view;
  known->view_offset.set(view.get(), Ref::to(known->region_start.of(region)));
  known->view_region.set(view.get(), Ref::to(region));
  known->region_waiting.set(region, Ref(PyLong_FromLong(waiting + 1)));
  return view;
}

// The same of one that is kept as it is, in a region that tells others of its memory.
Ref exact_of(PyObject* site, PyObject* tensor, PyObject* region) {
  Ref exact = copy_of(known->site_held.of(site));
  Ref kept = kept_of(tensor);
  if (!exact || !kept) return Ref();
  if (known->region_kept.of(region) == Py_None) known->region_kept.set(region, Ref::to(kept.get()));
  known->exact_kept.set(exact.get(), std::move(kept));
  known->exact_region.set(exact.get(), Ref::to(region));
  return exact;
}

Ref noted(Session* self, PyObject* record) {
  Ref copy = copy_of(record);
  if (copy && PyList_Append(at(self, Session::kRecords), copy.get()) < 0) return Ref();
  return copy;
}

// Stores a tensor whose memory nobody has saved in this forward.
Ref stored(Session* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address) {
  const bool keeps = known->site_form.of(site) == Py_False;
  Ref record = noted(self, known->site_record.of(site));
  Ref nbytes = called(storage, known->names.nbytes);
  Ref region = region_of(self, site, tensor);
  if (!record || !nbytes || !region) return Ref();
  known->record_original.set(record.get(), Ref::to(nbytes.get()));
  if (keeps) known->record_stored.set(record.get(), std::move(nbytes));
  Ref held;
  if (keeps) {
    held = exact_of(site, tensor, region.get());
  } else {
    Ref value = compressed(self, site, tensor);
    if (!value) return Ref();
    known->region_value.set(region.get(), std::move(value));
    known->region_record.set(region.get(), std::move(record));
    held = view_of(site, region.get());
  }
  Ref entry = new_of(known->entry_type);
  Ref regions(PyList_New(1));
  Ref weak(PyWeakref_NewRef(region.get(), nullptr));
  if (!held || !entry || !regions || !weak) return Ref();
  PyList_SET_ITEM(regions.get(), 0, weak.release());
  PyObject_GC_UnTrack(regions.get());
  known->entry_regions.set(entry.get(), std::move(regions));
  known->entry_counted.set(entry.get(), Ref::to(Py_True));
  Ref counted = called(storage, known->names._weak_ref);  // the map gives it back
  if (!counted || PyDict_SetItem(at(self, Session::kEntries), address, entry.get()) < 0) return Ref();
  return held;
}

// How a tensor is stored whose memory was saved before, as Site.sharing has it.
enum Sharing { kAlone, kOfKept, kOfValue, kBesideSign, kBesideKept };

// Whether a tensor is all of a region, as the one that the forward before saved was.
bool is_whole(PyObject* site, PyObject* tensor, PyObject* region) {
  PyObject* like = known->site_region.of(site);
  return is_same(Ref::to(known->region_numel.of(region)), known->region_numel.of(like)) &&
         known->region_dense.of(region) == Py_True && known->region_dtype.of(region) == known->region_dtype.of(like) &&
         is_same(called(tensor, known->names.storage_offset), known->region_start.of(region)) &&
         is_same(attribute(tensor, known->names._version), known->region_version.of(region));
}

// The region that a tensor is all of, where nothing else was saved of its memory, and in the state in which the forward
// before has found it; among others, of which all are kept, that or the last. Borrowed, null where it is not so.
PyObject* region_found(PyObject* site, PyObject* tensor, PyObject* entry, Sharing sharing) {
  PyObject* regions = known->entry_regions.of(entry);
  PyObject* found = nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(regions); ++i) {
    PyObject* region = PyWeakref_GetObject(PyList_GET_ITEM(regions, i));
    if (region == Py_None) continue;
    const bool kept = known->region_kept.of(region) != Py_None;
    if (sharing == kBesideKept ? !kept : found != nullptr) return nullptr;
    if (sharing != kBesideKept || found == nullptr || !is_whole(site, tensor, found)) found = region;
  }
  if (found == nullptr || sharing == kBesideKept) return found;
  if (!is_whole(site, tensor, found)) return nullptr;
  PyObject* value = known->region_value.of(found);
  const bool kept = known->region_kept.of(found) != Py_None;
  if (sharing == kOfKept) return kept ? found : nullptr;
  if (kept || (sharing == kBesideSign) != (value == Py_None)) return nullptr;
  if (sharing == kBesideSign) return found;
  PyObject* codec = PyDict_GetItem(known->site_fields.of(site), known->names.codec);
  return Py_IS_TYPE(value, known->compressed) && is_same(attribute(value, known->names.codec), codec) ? found : nullptr;
}

// Stores a tensor whose memory was saved before.
Ref shared(Session* self, PyObject* site, PyObject* tensor, PyObject* entry, PyObject* region, Sharing sharing) {
  Ref holding = Ref::to(region);
  Ref record = noted(self, known->site_record.of(site));
  if (!record) return Ref();
  if (sharing == kBesideKept && is_whole(site, tensor, region)) return exact_of(site, tensor, region);
  if (sharing == kBesideKept) {
    Ref own = region_of(self, site, tensor);
    Ref weak(own ? PyWeakref_NewRef(own.get(), nullptr) : nullptr);
    if (!weak || PyList_Append(known->entry_regions.of(entry), weak.get()) < 0) return Ref();
    return exact_of(site, tensor, own.get());
  }
  if (sharing == kBesideSign) {
    Ref value = compressed(self, site, tensor);
    if (!value) return Ref();
    known->region_value.set(region, std::move(value));
    known->region_record.set(region, std::move(record));
  }
  return view_of(site, region);
}

// Whether the memory holds the elements as they are read.
bool is_plain(PyObject* tensor) {
  return called(tensor, known->names.is_neg).get() == Py_False &&
         called(tensor, known->names._is_zerotensor).get() == Py_False;
}

}  // namespace

Ref stored_here(Session* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address) {
  PyObject* form = known->site_form.of(site);
  if (form == Py_None || !is_plain(tensor)) return Ref::to(Py_None);
  const auto sharing = static_cast<Sharing>(PyLong_AsLong(known->site_sharing.of(site)));
  PyObject* entry = PyDict_GetItemWithError(at(self, Session::kEntries), address);
  if (entry == nullptr) {
    if (sharing != kAlone || PyDict_GET_SIZE(at(self, Session::kEntries)) >= kRoom) return Ref::to(Py_None);
    return stored(self, site, tensor, storage, address);
  }
  if (sharing == kAlone || known->entry_counted.of(entry) != Py_True) return Ref::to(Py_None);
  PyObject* region = region_found(site, tensor, entry, sharing);
  if (region == nullptr) return Ref::to(Py_None);
  return shared(self, site, tensor, entry, region, sharing);
}

namespace {

// Whether a view is the one that its region, of which this made the stored form, is restored for.
bool is_alone(PyObject* view, PyObject* region, PyObject* value) {
  PyObject* waiting = known->region_waiting.of(region);
  PyObject* last = known->region_last.of(region);
  return known->view_waits.of(view) == Py_True && known->view_sign.of(view) == Py_False &&
         Py_IS_TYPE(value, known->compressed) && known->region_kept.of(region) == Py_None &&
         known->region_lent.of(region) == Py_None && PyLong_AsLong(waiting) == 1 &&
         known->lent_region.of(last) == Py_None &&
         attribute(value, known->names.layout).get() == known->view_layout.of(view);
}

}  // namespace

PyObject* unpacked(PyObject* packed) {
  const Names& names = known->names;
  if (!Py_IS_TYPE(packed, known->view)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  PyObject* region = known->view_region.of(packed);
  PyObject* value = known->region_value.of(region);
  if (!is_alone(packed, region, value)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  Ref codec = attribute(value, names.codec);
  Ref payload = attribute(value, names.payload);
  if (!codec || !payload) return nullptr;
  if (!Py_IS_TYPE(codec.get(), known->codec)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  Ref bits = attribute(codec.get(), names.bits);
  Ref group = attribute(codec.get(), names.group_size);
  known->view_waits.set(packed, Ref::to(Py_False));
  known->region_waiting.set(region, Ref(PyLong_FromLong(0)));
  Ref flat;
  {
    Below below;
    PyObject* given[] = {PyTuple_GET_ITEM(payload.get(), 0), PyTuple_GET_ITEM(payload.get(), 1),
                         known->region_numel.of(region), bits.get(), group.get()};
    flat = Ref(PyObject_Vectorcall(known->decompress, given, 5, nullptr));
  }
  if (!flat) return nullptr;
  PyObject* layout = known->view_layout.of(packed);
  PyObject *shape = PyTuple_GET_ITEM(layout, 0), *strides = PyTuple_GET_ITEM(layout, 1);
  if (PyTuple_GET_SIZE(strides) == 1 && PyLong_AsLong(PyTuple_GET_ITEM(strides, 0)) == 1) return flat.release();
  PyObject* given[] = {flat.get(), shape, strides};
  return PyObject_VectorcallMethod(names.as_strided, given, 3, nullptr);
}

}  // namespace actcore
