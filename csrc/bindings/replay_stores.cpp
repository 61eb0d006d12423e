// How a saved tensor is stored that is the one that the forward before saved at this place: by one codec's call, or none.
#include "bindings/replay_stores.h"

namespace actcore {

// Detached, since the tensor may be the result of the very node that will hold this.
Ref kept_of(PyObject* tensor) {
  Ref made(known->kept->tp_alloc(known->kept, 0));
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
  Ref flat = Ref::to(known->site_flat.of(site));
  if (flat.get() != Py_None) {  // as it lies in memory
    Ref alias = called(tensor, known->names.detach);
    if (!alias) return Ref();
    PyObject* given[] = {alias.get(), PyTuple_GET_ITEM(flat.get(), 0), PyTuple_GET_ITEM(flat.get(), 1)};
    elements = Ref(PyObject_VectorcallMethod(known->names.as_strided, given, 3, nullptr));
    if (!elements) return Ref();
  }
  const uint64_t identity = PyLong_AsUnsignedLongLong(known->site_noise.of(site));
  Ref stream(PyLong_FromLongLong(static_cast<int64_t>(mixed(identity ^ self->step))));
  if (!stream) return Ref();
  Ref arguments = Ref::to(known->site_arguments.of(site));  // bits, group size, whether stochastic, seed
  Ref payload;
  {
    Below below;
    if (!below) return Ref();
    PyObject* given[] = {elements.get(),
                         PyTuple_GET_ITEM(arguments.get(), 0),
                         PyTuple_GET_ITEM(arguments.get(), 1),
                         PyTuple_GET_ITEM(arguments.get(), 2),
                         PyTuple_GET_ITEM(arguments.get(), 3),
                         stream.get()};
    payload = Ref(PyObject_Vectorcall(known->compress, given, 6, nullptr));
  }
  if (!payload) return Ref();
  Ref made(known->compressed->tp_alloc(known->compressed, 0));
  Ref fields(PyDict_Copy(known->site_fields.of(site)));
  if (!made || !fields || PyDict_SetItem(fields.get(), known->names.payload, payload.get()) < 0 ||
      PyObject_GenericSetDict(made.get(), fields.get(), nullptr) < 0)
    return Ref();
  untrack(fields.get());
  untrack(made.get());
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
  untrack(view.get());
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

// Puts a record among those of the forward.
bool noted(Session* self, Ref record) {
  untrack(record.get());
  return PyList_Append(at(self, Session::kRecords), record.get()) == 0;
}

// Notes what is known of a storage, as StorageMap.put does.
bool put(Session* self, PyObject* storage, PyObject* address, PyObject* entry) {
  PyObject* entries = at(self, Session::kEntries);
  if (PyDict_GET_SIZE(entries) < kRoom) {
    Ref counted = called(storage, known->names._weak_ref);  // the map gives it back
    return counted && PyDict_SetItem(entries, address, entry) == 0;
  }
  PyObject* given[] = {storage, entry};
  return static_cast<bool>(Ref(PyObject_Vectorcall(at(self, Session::kPut), given, 2, nullptr)));
}

// Stores a tensor whose memory nobody has saved in this forward.
Ref stored(Session* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address, Ref nbytes) {
  const bool keeps = known->site_form.of(site) == Py_False;
  Ref record = copy_of(known->site_record.of(site));
  Ref region = region_of(self, site, tensor);
  if (!record || !region) return Ref();
  if (keeps) known->record_stored.set(record.get(), Ref::to(nbytes.get()));
  known->record_original.set(record.get(), std::move(nbytes));
  Ref held;
  if (keeps) {
    held = exact_of(site, tensor, region.get());
  } else {
    Ref value = compressed(self, site, tensor);
    if (!value) return Ref();
    known->region_value.set(region.get(), std::move(value));
    known->region_record.set(region.get(), Ref::to(record.get()));
    held = view_of(site, region.get());
    untrack(region.get());
  }
  Ref entry(known->entry_type->tp_alloc(known->entry_type, 0));
  Ref regions(PyList_New(1));
  Ref weak(PyWeakref_NewRef(region.get(), nullptr));
  if (!held || !entry || !regions || !weak) return Ref();
  PyList_SET_ITEM(regions.get(), 0, weak.release());
  untrack(regions.get());
  known->entry_regions.set(entry.get(), std::move(regions));
  known->entry_counted.set(entry.get(), Ref::to(Py_True));
  untrack(entry.get());
  if (!put(self, storage, address, entry.get())) return Ref();
  return noted(self, std::move(record)) ? std::move(held) : Ref();
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
// before has found it; among others, of which all are kept, that or the last. Null where it is not so.
Ref region_found(PyObject* site, PyObject* tensor, PyObject* regions, Sharing sharing) {
  Ref found;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(regions); ++i) {
    Ref region = object_of(PyList_GET_ITEM(regions, i));
    if (!region) continue;
    const bool kept = known->region_kept.of(region.get()) != Py_None;
    if (sharing == kBesideKept ? !kept : static_cast<bool>(found)) return Ref();
    if (sharing != kBesideKept || !found || !is_whole(site, tensor, found.get())) found = std::move(region);
  }
  if (!found || sharing == kBesideKept) return found;
  if (!is_whole(site, tensor, found.get())) return Ref();
  Ref value = Ref::to(known->region_value.of(found.get()));
  const bool kept = known->region_kept.of(found.get()) != Py_None;
  if (sharing == kOfKept) return kept ? std::move(found) : Ref();
  if (kept || (sharing == kBesideSign) != (value.get() == Py_None)) return Ref();
  if (sharing == kBesideSign) return found;
  PyObject* codec = PyDict_GetItem(known->site_fields.of(site), known->names.codec);
  const bool shares =
      Py_IS_TYPE(value.get(), known->compressed) && is_same(attribute(value.get(), known->names.codec), codec);
  return shares ? std::move(found) : Ref();
}

// Stores a tensor whose memory was saved before.
Ref shared(Session* self, PyObject* site, PyObject* tensor, PyObject* regions, PyObject* region, Sharing sharing) {
  Ref record = copy_of(known->site_record.of(site));
  if (!record) return Ref();
  Ref held;
  if (sharing == kBesideKept && is_whole(site, tensor, region)) {
    held = exact_of(site, tensor, region);
  } else if (sharing == kBesideKept) {
    Ref own = region_of(self, site, tensor);
    Ref weak(own ? PyWeakref_NewRef(own.get(), nullptr) : nullptr);
    if (!weak || PyList_Append(regions, weak.get()) < 0) return Ref();
    held = exact_of(site, tensor, own.get());
  } else {
    if (sharing == kBesideSign) {
      Ref value = compressed(self, site, tensor);
      if (!value) return Ref();
      known->region_value.set(region, std::move(value));
      known->region_record.set(region, Ref::to(record.get()));
    }
    held = view_of(site, region);
  }
  return held && noted(self, std::move(record)) ? std::move(held) : Ref();
}

// Whether the memory holds the elements as they are read.
bool is_plain(PyObject* tensor) {
  const Names& names = known->names;
  return is_same(called(tensor, names.is_neg), Py_False) && is_same(called(tensor, names.is_conj), Py_False) &&
         is_same(called(tensor, names._is_zerotensor), Py_False);
}

}  // namespace

Ref stored_here(Session* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address) {
  PyObject* form = known->site_form.of(site);
  if (form == Py_None || !is_plain(tensor)) return Ref::to(Py_None);
  const auto sharing = static_cast<Sharing>(PyLong_AsLong(known->site_sharing.of(site)));
  Ref entry = Ref::to(PyDict_GetItemWithError(at(self, Session::kEntries), address));
  if (!entry) {
    if (PyErr_Occurred()) return Ref();
    Ref nbytes = called(storage, known->names.nbytes);
    if (!nbytes) return Ref();
    // Of memory of another size a part may be worth a copy.
    const bool same = is_same(Ref::to(nbytes.get()), known->record_original.of(known->site_record.of(site)));
    if (sharing != kAlone || !same) return Ref::to(Py_None);
    return stored(self, site, tensor, storage, address, std::move(nbytes));
  }
  if (sharing == kAlone || known->entry_counted.of(entry.get()) != Py_True) return Ref::to(Py_None);
  Ref regions = Ref::to(known->entry_regions.of(entry.get()));
  Ref region = region_found(site, tensor, regions.get(), sharing);
  if (!region) return Ref::to(Py_None);
  return shared(self, site, tensor, regions.get(), region.get(), sharing);
}

namespace {

// Whether a view is the one that its region, of which this made the stored form, is restored for.
bool is_alone(PyObject* view, PyObject* region, PyObject* value) {
  PyObject* waiting = known->region_waiting.of(region);
  PyObject* last = known->region_last.of(region);
  return known->view_waits.of(view) == Py_True && known->view_sign.of(view) == Py_False &&
         Py_IS_TYPE(value, known->compressed) && known->region_kept.of(region) == Py_None &&
         known->region_lent.of(region) == Py_None && PyLong_AsLong(waiting) == 1 &&
         known->lent_region.of(last) == Py_None && has(value, known->names.layout, known->view_layout.of(view));
}

}  // namespace

PyObject* unpacked(PyObject* packed) {
  const Names& names = known->names;
  if (!Py_IS_TYPE(packed, known->view)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  Ref owned = Ref::to(known->view_region.of(packed));
  PyObject* region = owned.get();
  Ref stored = Ref::to(known->region_value.of(region));
  PyObject* value = stored.get();
  if (!is_alone(packed, region, value)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  Ref codec = attribute(value, names.codec);
  Ref payload = attribute(value, names.payload);
  if (!codec || !payload) return nullptr;
  if (!Py_IS_TYPE(codec.get(), known->codec)) return PyObject_CallMethodNoArgs(packed, names.unpack);
  Ref bits = attribute(codec.get(), names.bits);
  Ref group = attribute(codec.get(), names.group_size);
  if (!bits || !group) return nullptr;
  known->view_waits.set(packed, Ref::to(Py_False));
  known->region_waiting.set(region, Ref(PyLong_FromLong(0)));
  Ref flat;
  {
    Below below;
    if (!below) return nullptr;
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
