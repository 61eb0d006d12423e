// How a saved tensor is stored that is the one that the forward before saved at this place: by one codec's call, or none.
#include "bindings/replay_stores.h"

#include "bindings/calls.h"
#include "bindings/formulas.h"

namespace actcore {

// Detached, since the tensor may be the result of the very node that will hold this.
Ref kept_of(PyObject* tensor) {
  Ref made(known->kept->tp_alloc(known->kept, 0));
  if (!made) return Ref();  // nothing is asked of Python while an error is set, which would become another
  Ref alias = called(tensor, known->names.detach);
  if (!alias) return Ref();
  Ref version = attribute(tensor, known->names._version);
  if (!version) return Ref();
  known->kept_tensor.set(made.get(), std::move(alias));
  known->kept_version.set(made.get(), std::move(version));
  untrack(made.get());
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

// As what a tensor is stored, as Site.form has it.
enum Form { kKept, kValue, kSign, kHeld, kShape, kRecomputed, kByFormula };

constexpr Py_ssize_t kStream = 4;  // among the arguments of an operator that draws noise
constexpr Py_ssize_t kMost = 8;    // of an operator's arguments

// An object with these fields in its __dict__, which the collector need not look at. Set as Python code would: in Python
// 3.13 PyObject_GenericSetDict leaves the values that an object has beside a dictionary, where attributes are looked up.
Ref with_fields(PyTypeObject* type, Ref fields) {
  Ref made(type->tp_alloc(type, 0));
  if (!made || !fields || PyObject_GenericSetAttr(made.get(), known->names.__dict__, fields.get()) < 0) return Ref();
  untrack(fields.get());
  untrack(made.get());
  return made;
}

// The payload: the first of what an operator returned.
Ref payload_of(Ref returned, PyObject* parts) {
  if (!returned) return returned;
  if (!PyTuple_Check(returned.get())) return Ref(PyTuple_Pack(1, returned.get()));
  const Py_ssize_t count = PyLong_AsSsize_t(parts);
  return PyTuple_GET_SIZE(returned.get()) == count ? std::move(returned)
                                                   : Ref(PyTuple_GetSlice(returned.get(), 0, count));
}

// None, of a tensor whose stored form did not follow from its site, which no other is compared with any more.
Ref outdated(PyObject* site) {
  known->site_function.set(site, Ref::to(Py_Ellipsis));
  return Ref::to(Py_None);
}

// The stored form of a tensor: an actcore.Compressed. None where it has an element that the form does not take.
Ref compressed(Replay* self, PyObject* site, PyObject* tensor) {
  Ref elements = Ref::to(tensor);
  Ref flat = Ref::to(known->site_flat.of(site));
  if (flat.get() != Py_None) {  // as it lies in memory
    Ref alias = called(tensor, known->names.detach);
    if (!alias) return Ref();
    const Py_ssize_t parts = PyTuple_GET_SIZE(flat.get());  // shape, strides and, of what is more, where it begins
    PyObject* given[4] = {alias.get()};
    for (Py_ssize_t i = 0; i < parts && i < 3; ++i) given[1 + i] = PyTuple_GET_ITEM(flat.get(), i);
    elements = Ref(PyObject_VectorcallMethod(known->names.as_strided, given, static_cast<size_t>(1 + parts), nullptr));
    if (!elements) return Ref();
  }
  Ref encoder = Ref::to(Operator{known->site_encoder.of(site), known->site_kernel.of(site)}.of(tensor)),
      arguments = Ref::to(known->site_arguments.of(site)), stream;
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments.get());
  PyObject* given[1 + kMost] = {elements.get()};
  if (count > kMost) {
    PyErr_Format(PyExc_TypeError, "a codec's operator must take at most %zd arguments, got %zd", kMost, count);
    return Ref();
  }
  for (Py_ssize_t i = 0; i < count; ++i) given[1 + i] = PyTuple_GET_ITEM(arguments.get(), i);
  if (PyObject* noise = known->site_noise.of(site); noise != Py_None) {
    const uint64_t identity = PyLong_AsUnsignedLongLong(noise);
    stream = Ref(PyLong_FromLongLong(static_cast<int64_t>(mixed(identity ^ self->step))));
    if (!stream) return Ref();
    given[1 + kStream] = stream.get();
  }
  Ref returned;
  {
    Below below(encoder.get());
    if (!below) return Ref();
    returned = Ref(PyObject_Vectorcall(encoder.get(), given, static_cast<size_t>(1 + count), nullptr));
  }
  if (!returned) return Ref();
  if (known->site_checked.of(site) == Py_True) {  // the operator's last result says whether there is such an element
    PyObject* flag = PyTuple_Check(returned.get()) && PyTuple_GET_SIZE(returned.get()) != 0
                         ? PyTuple_GET_ITEM(returned.get(), PyTuple_GET_SIZE(returned.get()) - 1)
                         : Py_None;
    Ref misfit = called(flag, known->names.item);
    if (!misfit) return Ref();
    if (PyObject_IsTrue(misfit.get()) != 0) return outdated(site);
  }
  Ref payload = payload_of(std::move(returned), known->site_parts.of(site));
  if (!payload) return Ref();
  Ref fields(PyDict_Copy(known->site_fields.of(site)));
  if (!fields || PyDict_SetItem(fields.get(), known->names.payload, payload.get()) < 0) return Ref();
  return with_fields(known->compressed, std::move(fields));
}

// A region of a tensor like the one that the forward before had, which holds nothing yet. That of more than the tensor
// begins where it did.
Ref region_of(Replay* self, PyObject* site, PyObject* tensor) {
  Ref region = copy_of(known->site_region.of(site));
  if (!region) return Ref();
  Ref version = attribute(tensor, known->names._version);
  if (!version) return Ref();
  if (known->site_whole.of(site) == Py_None) {
    Ref start = called(tensor, known->names.storage_offset);
    if (!start) return Ref();
    known->region_start.set(region.get(), std::move(start));
  }
  known->region_version.set(region.get(), std::move(version));
  known->region_last.set(region.get(), Ref::to(at(self, Replay::kLent)));
  return region;
}

// What autograd holds in the place of a tensor that is a whole region, or the part of one that it was before.
Ref view_of(PyObject* site, PyObject* region) {
  Ref view = copy_of(known->site_held.of(site));
  if (!view) return view;
  untrack(view.get());
  if (known->site_whole.of(site) == Py_None)
    known->view_offset.set(view.get(), Ref::to(known->region_start.of(region)));
  known->view_region.set(view.get(), Ref::to(region));
  if (known->view_waits.of(view.get()) == Py_True) {
    const long waiting = PyLong_AsLong(known->region_waiting.of(region));
    known->region_waiting.set(region, Ref(PyLong_FromLong(waiting + 1)));
  }
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
bool noted(Replay* self, Ref record) {
  untrack(record.get());
  return PyList_Append(at(self, Replay::kRecords), record.get()) == 0;
}

// Notes what is known of a storage that nobody has saved in this forward, as StorageMap.put does.
bool put(Replay* self, PyObject* storage, PyObject* address, Ref regions) {
  Ref entry(regions ? known->entry_type->tp_alloc(known->entry_type, 0) : nullptr);
  if (!entry) return false;
  untrack(regions.get());
  known->entry_regions.set(entry.get(), std::move(regions));
  known->entry_counted.set(entry.get(), Ref::to(Py_True));
  untrack(entry.get());
  PyObject* entries = at(self, Replay::kEntries);
  if (PyDict_GET_SIZE(entries) < kRoom) {
    Ref counted = called(storage, known->names._weak_ref);  // the map gives it back
    return counted && PyDict_SetItem(entries, address, entry.get()) == 0;
  }
  PyObject* given[] = {storage, entry.get()};
  return static_cast<bool>(Ref(PyObject_Vectorcall(at(self, Replay::kPut), given, 2, nullptr)));
}

// Stores a tensor, of whose memory there is no region in this forward, in one of its own.
Ref stored(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address, PyObject* entry,
           Ref nbytes, Form form) {
  Ref record = copy_of(known->site_record.of(site));
  Ref region = region_of(self, site, tensor);
  if (!record || !region) return Ref();
  if (form == kKept) known->record_stored.set(record.get(), Ref::to(nbytes.get()));
  known->record_original.set(record.get(), std::move(nbytes));
  Ref held;
  if (form == kKept) {
    held = exact_of(site, tensor, region.get());
  } else {
    Ref value = compressed(self, site, tensor);
    if (!value || value.get() == Py_None) return value;
    (form == kSign ? known->region_sign : known->region_value).set(region.get(), std::move(value));
    (form == kSign ? known->region_sign_record : known->region_record).set(region.get(), Ref::to(record.get()));
    held = view_of(site, region.get());
    untrack(region.get());
  }
  Ref regions = entry == nullptr ? Ref(PyList_New(0)) : Ref::to(known->entry_regions.of(entry));
  Ref weak(PyWeakref_NewRef(region.get(), nullptr));
  if (!held || !regions || !weak || PyList_Append(regions.get(), weak.get()) < 0) return Ref();
  if (entry == nullptr && !put(self, storage, address, std::move(regions))) return Ref();
  return noted(self, std::move(record)) ? std::move(held) : Ref();
}

// What autograd holds of a tensor of whose memory no region tells others, with a record of it.
Ref told(Replay* self, PyObject* site, PyObject* storage, PyObject* address, bool known_before, Ref held) {
  Ref record = copy_of(known->site_record.of(site));
  Ref nbytes = known_before ? Ref(PyLong_FromLong(0)) : called(storage, known->names.nbytes);
  if (!held || !record || !nbytes) return Ref();
  known->record_original.set(record.get(), std::move(nbytes));
  if (!known_before && !put(self, storage, address, Ref(PyList_New(0)))) return Ref();
  return noted(self, std::move(record)) ? std::move(held) : Ref();
}

// Stores a tensor for one operator alone, whatever else is saved of its memory.
Ref formed(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address, bool known_before,
           Form form) {
  Ref held = Ref::to(known->site_held.of(site));
  if (form == kHeld) {
    Ref value = compressed(self, site, tensor);
    if (value.get() == Py_None) return value;
    Ref like(value ? PyObject_GenericGetDict(held.get(), nullptr) : nullptr);
    Ref fields(like ? PyDict_Copy(like.get()) : nullptr);
    if (!fields || PyDict_SetItem(fields.get(), known->names.compressed, value.get()) < 0) return Ref();
    held = with_fields(Py_TYPE(held.get()), std::move(fields));
  }
  return told(self, site, storage, address, known_before, std::move(held));
}

// Leaves a tensor to be recomputed when backward reads it. None where nobody can make it.
Ref recomputed(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address,
               bool known_before) {
  PyObject* again = at(self, Replay::kAgain);
  Ref held = again == Py_None ? Ref::to(Py_None) : Ref(PyObject_CallOneArg(again, tensor));
  if (!held || held.get() == Py_None) return held;
  return told(self, site, storage, address, known_before, std::move(held));
}

// Leaves a tensor to a formula. None where the one that the forward before has used is not there, or something is stored
// of the tensor's memory, which costs less.
Ref by_formula(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address, PyObject* entry) {
  PyObject* noted = at(self, Replay::kFormulas);
  PyObject* regions = entry == nullptr ? nullptr : known->entry_regions.of(entry);
  for (Py_ssize_t i = 0; regions != nullptr && i < PyList_GET_SIZE(regions); ++i)
    if (Ref region = object_of(PyList_GET_ITEM(regions, i)); region && is_held(region.get())) return Ref::to(Py_None);
  if (!is_noted_calls(noted)) return Ref::to(Py_None);
  auto* formulas = reinterpret_cast<NotedCalls*>(noted);
  Ref expected = Ref::to(known->site_formula.of(site)), like = Ref::to(known->site_held.of(site));
  Ref formula = Ref::to(PyDict_GetItemWithError(at(formulas, NotedCalls::kFormulas), address));
  if (!formula) return PyErr_Occurred() ? Ref() : Ref::to(Py_None);
  if (known->formula_noted.of(formula.get()) != PyTuple_GET_ITEM(expected.get(), 0)) return outdated(site);
  if (!is_same(attribute(tensor, known->names._version), known->formula_version.of(formula.get())) ||
      !is_same(called(tensor, known->names.storage_offset),
               PyTuple_GET_ITEM(known->recomputed_place.of(like.get()), 1)))
    return Ref::to(Py_None);
  Ref bound = bound_of(formula.get());
  if (!bound || bound.get() == Py_None) return bound;
  if (PyLong_AsLong(known->bound_bits.of(bound.get())) < PyLong_AsLong(PyTuple_GET_ITEM(expected.get(), 1)))
    return Ref::to(Py_None);
  Ref held = copy_of(like.get());
  if (!held) return held;
  const long waiting = PyLong_AsLong(known->bound_waiting.of(bound.get()));
  known->bound_waiting.set(bound.get(), Ref(PyLong_FromLong(waiting + 1)));
  known->recomputed_bound.set(held.get(), std::move(bound));
  known->recomputed_last.set(held.get(), Ref::to(at(formulas, NotedCalls::kLast)));
  untrack(held.get());
  return told(self, site, storage, address, entry != nullptr, std::move(held));
}

// How a tensor is stored whose memory was saved before, as Site.sharing has it.
enum Sharing { kAlone, kOfKept, kOfValue, kBesideSign, kBesideKept };

// Whether a tensor is all of a region, or a part of more, as the one that the forward before saved was.
bool is_whole(PyObject* site, PyObject* tensor, PyObject* region) {
  PyObject* like = known->site_region.of(site);
  PyObject* start = known->region_start.of(region);
  if (known->site_whole.of(site) != Py_None) {
    if (!is_same(Ref::to(start), known->region_start.of(like))) return false;
    start = known->view_offset.of(known->site_held.of(site));
  }
  return is_same(Ref::to(known->region_numel.of(region)), known->region_numel.of(like)) &&
         known->region_dense.of(region) == Py_True && known->region_dtype.of(region) == known->region_dtype.of(like) &&
         is_same(called(tensor, known->names.storage_offset), start) &&
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
Ref shared(Replay* self, PyObject* site, PyObject* tensor, PyObject* regions, PyObject* region, Sharing sharing) {
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
      if (!value || value.get() == Py_None) return value;
      known->region_value.set(region, std::move(value));
      known->region_record.set(region, Ref::to(record.get()));
    }
    held = view_of(site, region);
  }
  return held && noted(self, std::move(record)) ? std::move(held) : Ref();
}

// Whether query, key and value of the attention that saves a tensor lie in its memory as they did in the forward
// before, where one product has made all three.
bool lie_as_before(Replay* self, PyObject* site, PyObject* address) {
  PyObject* whole = known->site_whole.of(site);
  if (whole == Py_None) return true;
  PyObject* call = reinterpret_cast<Calls*>(at(self, Replay::kTracker))->members[Calls::kCall];
  PyObject* arguments = known->call_arguments.of(call);
  if (!PyList_CheckExact(arguments) || PyList_GET_SIZE(arguments) < PyTuple_GET_SIZE(whole)) return false;
  const Names& names = known->names;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(whole); ++i) {
    PyObject* part = PyList_GET_ITEM(arguments, i);
    Ref storage;
    if (!is_real(part) || !is_same(address_of(part, &storage), address) ||
        !has(part, names.dtype, known->site_dtype.of(site)) ||
        !is_same(attribute(part, names.shape), known->site_shape.of(site)) ||
        !is_same(called(part, names.stride), known->site_strides.of(site)) ||
        !is_same(called(part, names.storage_offset), PyTuple_GET_ITEM(whole, i)))
      return false;
  }
  return true;
}

Ref stored_as_before(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address) {
  if (known->site_form.of(site) == Py_None || !is_as_in_memory(tensor)) return Ref::to(Py_None);
  const auto form = static_cast<Form>(PyLong_AsLong(known->site_form.of(site)));
  const auto sharing = static_cast<Sharing>(PyLong_AsLong(known->site_sharing.of(site)));
  Ref entry = Ref::to(PyDict_GetItemWithError(at(self, Replay::kEntries), address));
  if (!entry && PyErr_Occurred()) return Ref();
  if (entry && known->entry_counted.of(entry.get()) != Py_True) return Ref::to(Py_None);
  if (form == kHeld || form == kShape)
    return formed(self, site, tensor, storage, address, static_cast<bool>(entry), form);
  if (form == kRecomputed) return recomputed(self, site, tensor, storage, address, static_cast<bool>(entry));
  if (form == kByFormula) return by_formula(self, site, tensor, storage, address, entry.get());
  Ref regions = entry ? Ref::to(known->entry_regions.of(entry.get())) : Ref();
  if (sharing == kAlone) {
    // Memory that was stored for one operator alone is counted already.
    if (entry && PyList_GET_SIZE(regions.get()) != 0) return Ref::to(Py_None);
    Ref nbytes = entry ? Ref(PyLong_FromLong(0)) : called(storage, known->names.nbytes);
    if (!nbytes) return Ref();
    // Of memory of another size a part may be worth a copy.
    const bool same = is_same(Ref::to(nbytes.get()), known->record_original.of(known->site_record.of(site)));
    if (!same) return Ref::to(Py_None);
    return stored(self, site, tensor, storage, address, entry.get(), std::move(nbytes), form);
  }
  if (!entry) return Ref::to(Py_None);
  Ref region = region_found(site, tensor, regions.get(), sharing);
  if (!region) return Ref::to(Py_None);
  return shared(self, site, tensor, regions.get(), region.get(), sharing);
}

}  // namespace

Ref stored_here(Replay* self, PyObject* site, PyObject* tensor, PyObject* storage, PyObject* address) {
  if (!lie_as_before(self, site, address)) return outdated(site);
  return stored_as_before(self, site, tensor, storage, address);
}

}  // namespace actcore
