// The fast path of integrations' runtime: a saved tensor that is the one that the forward before saved at this place is
// stored as that was. All that its store follows from is compared here, field by field; what differs, and what is more
// than one codec's call, goes the full way, in Python. integrations/saved/replay.py says what the objects are.
#include "bindings/replay.h"

#include <cstdint>
#include <memory>

#include "bindings/objects.h"

namespace py = pybind11;

namespace actcore {
namespace {

// Interned, so that a lookup compares pointers.
struct Names {
#define ACTCORE_NAMES(X)                                                                                            \
  X(call) X(shape) X(stride) X(dtype) X(device) X(layout) X(requires_grad) X(is_leaf) X(untyped_storage) X(_cdata)  \
  X(_base) X(_version) X(storage_offset) X(nbytes) X(_weak_ref) X(detach) X(as_strided) X(is_neg) X(_is_zerotensor) \
  X(payload) X(codec) X(bits) X(group_size) X(__enter__) X(__exit__) X(unpack) X(role) X(becomes)
#define ACTCORE_NAME(name) PyObject* name = PyUnicode_InternFromString(#name);
  ACTCORE_NAMES(ACTCORE_NAME)
#undef ACTCORE_NAME
};

// The classes and functions of Python that the fast path knows.
struct Known {
  explicit Known(const py::dict& given) {
    auto type = [&](const char* name) {
      PyObject* found = given[name].ptr();
      if (!PyType_Check(found)) throw std::invalid_argument(std::string(name) + " must be a class");
      return reinterpret_cast<PyTypeObject*>(Py_NewRef(found));
    };
    auto object = [&](const char* name) { return Py_NewRef(given[name].ptr()); };
    tensor = type("Tensor"), parameter = type("Parameter"), module = type("Module");
    call = type("Call"), site = type("Site"), view = type("View"), kept = type("Kept"), codec = type("GroupAffine");
    PyTypeObject *record = type("Record"), *region = type("Region"), *exact = type("Exact"), *entry = type("Entry");
    compressed = type("Compressed");
    strided = object("strided"), below = object("below_autograd");
    compress = object("compress"), decompress = object("decompress"), before = object("BEFORE"), calling = object("calling");
    call_function = {call, "function"}, call_module = {call, "module"};
    call_arguments = {call, "arguments"}, call_recomputes = {call, "recomputes"};
    site_function = {site, "function"}, site_recipe = {site, "recipe"}, site_place = {site, "place"};
    site_module = {site, "module"}, site_role = {site, "role"}, site_occurrence = {site, "occurrence"};
    site_following = {site, "following"}, site_shape = {site, "shape"}, site_strides = {site, "strides"};
    site_dtype = {site, "dtype"}, site_device = {site, "device"}, site_requires_grad = {site, "requires_grad"};
    site_owner = {site, "owner"}, site_value = {site, "value"}, site_next = {site, "next"}, site_form = {site, "form"};
    site_record = {site, "record"}, site_region = {site, "region"}, site_held = {site, "held"};
    site_arguments = {site, "arguments"}, site_fields = {site, "fields"}, site_noise = {site, "noise"};
    site_flat = {site, "flat"}, site_on_device = {site, "on_device"};
    site_caller = {site, "caller"}, site_sharing = {site, "sharing"};
    record_original = {record, "original_bytes"}, record_stored = {record, "stored_bytes"};
    region_start = {region, "start"}, region_version = {region, "version"}, region_value = {region, "value"};
    region_kept = {region, "kept"}, region_lent = {region, "lent"}, region_waiting = {region, "waiting"}, region_numel = {region, "numel"};
    region_dense = {region, "dense"}, region_dtype = {region, "dtype"};
    region_last = {region, "last"}, region_record = {region, "record"};
    view_region = {view, "region"}, view_layout = {view, "layout"}, view_offset = {view, "offset"};
    view_sign = {view, "sign"}, view_waits = {view, "waits"};
    exact_kept = {exact, "kept"}, exact_region = {exact, "region"};
    kept_tensor = {kept, "tensor"}, kept_version = {kept, "version"};
    entry_regions = {entry, "regions"}, entry_counted = {entry, "counted"};
    lent_region = {type("LastRestored"), "region"};
    entry_type = entry;
  }

  PyTypeObject *tensor, *parameter, *module, *call, *site, *view, *kept, *codec, *compressed, *entry_type;
  PyObject *strided, *below, *compress, *decompress, *before, *calling;
  Field call_function, call_module, call_arguments, call_recomputes;
  Field site_function, site_recipe, site_place, site_module, site_role, site_occurrence, site_following, site_shape;
  Field site_strides, site_dtype, site_device, site_requires_grad, site_owner, site_value, site_next, site_form;
  Field site_record, site_region, site_held, site_arguments, site_fields, site_noise, site_flat, site_on_device, site_caller, site_sharing;
  Field record_original, record_stored, region_start, region_version, region_value, region_kept, region_lent;
  Field region_waiting, region_numel, region_dense, region_dtype, region_last, region_record, view_region, view_layout, view_offset, view_sign;
  Field view_waits, lent_region, exact_kept, exact_region, kept_tensor, kept_version, entry_regions, entry_counted;
  Names names;
};

std::unique_ptr<Known> known;

bool is_real(PyObject* tensor) {
  return Py_IS_TYPE(tensor, known->tensor) || Py_IS_TYPE(tensor, known->parameter);
}

// Whether an attribute, or what a method without arguments returns, is what is expected. What cannot be asked is not.
bool is_same(Ref found, PyObject* expected) {
  if (!found || expected == nullptr) {
    PyErr_Clear();
    return false;
  }
  if (found.get() == expected) return true;
  const int equal = PyObject_RichCompareBool(found.get(), expected, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

Ref attribute(PyObject* object, PyObject* name) { return Ref(PyObject_GetAttr(object, name)); }
Ref called(PyObject* object, PyObject* name) { return Ref(PyObject_CallMethodNoArgs(object, name)); }

// The address of a tensor's storage, as a number of Python; null where it has none to ask for.
Ref address_of(PyObject* tensor, Ref* storage) {
  *storage = called(tensor, known->names.untyped_storage);
  Ref address = *storage ? attribute(storage->get(), known->names._cdata) : Ref();
  if (!address) PyErr_Clear();
  return address;
}

constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15;

// As actcore.noise has it.
uint64_t mixed(uint64_t value) {
  value += kIncrement;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

// A block in which torch's own kernels are called, below autograd.
class Below {
 public:
  Below() : guard_(PyObject_CallNoArgs(known->below)) {
    if (guard_) Ref entered = called(guard_.get(), known->names.__enter__);
  }
  ~Below() {
    if (!guard_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* arguments[] = {guard_.get(), Py_None, Py_None, Py_None};
    Ref left(PyObject_VectorcallMethod(known->names.__exit__, arguments, 4, nullptr));
    PyErr_Restore(type, value, trace);
  }

 private:
  Ref guard_;
};

// The module whose forward a frame of nn.Module._call_impl runs: its ``self``, which may be in a cell; borrowed.
int find_module(PyObject* held, void* found) {
  PyObject* value = PyCell_Check(held) ? PyCell_GET(held) : held;
  if (value == nullptr || !PyObject_TypeCheck(value, known->module)) return 0;
  *static_cast<PyObject**>(found) = value;
  return 1;
}

// Whether the module whose forward is the innermost that runs is the one that the reference is of.
bool is_called_by(PyObject* reference) {
  if (!PyWeakref_CheckRef(reference)) return false;
  for (Ref frame = Ref::to(reinterpret_cast<PyObject*>(PyEval_GetFrame())); frame;) {
    auto* here = reinterpret_cast<PyFrameObject*>(frame.get());
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    if (code.get() == known->calling) {
      // What f_locals would copy, and hold until the frame is left.
      PyObject* module = nullptr;
      Py_TYPE(here)->tp_traverse(frame.get(), find_module, &module);
      return module != nullptr && PyWeakref_GetObject(reference) == module;
    }
    frame = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return false;
}

// What the fast path of one session goes by.
struct Session {
  enum Object {
    kTracker,
    kOccurrences,
    kHolders,
    kForeign,
    kExposed,
    kDue,
    kRecords,
    kEntries,
    kLent,
    kDtype,
    kValues,
    kStore,
    kModule,
    kOwner,
    kCapturing,
    kGiven,
    kExpected = kGiven,
    kLast,
    kObjects,
  };
  PyObject ob_base;
  PyObject* objects[kObjects];
  uint64_t step;
};

constexpr const char* kNames[] = {"tracker",  "occurrences", "holders", "foreign", "exposed",
                                  "due",      "records",     "entries", "lent",    "dtype",
                                  "values",   "store",       "module",  "owner",   "capturing"};
constexpr Py_ssize_t kRoom = 1024;  // entries of a map of storages, from which on it looks for those that are gone

PyObject* at(Session* self, Session::Object which) { return self->objects[which]; }

// Whether the tensor is to the call what the site says.
bool plays_role(PyObject* site, PyObject* call, PyObject* tensor, PyObject* storage, PyObject* address) {
  PyObject* role = known->site_role.of(site);
  PyObject* arguments = known->call_arguments.of(call);
  bool told = known->call_recomputes.of(call) == Py_False && PyList_CheckExact(arguments);
  const Py_ssize_t count = told ? PyList_GET_SIZE(arguments) : 0;
  Py_ssize_t position = -1;
  for (Py_ssize_t i = 0; told && position < 0 && i < count; ++i) {
    PyObject* argument = PyList_GET_ITEM(arguments, i);
    if (argument == tensor) {
      position = i;
    } else if (is_real(argument)) {
      Ref own;
      Ref other = address_of(argument, &own);
      told = static_cast<bool>(other);
      if (told && PyObject_RichCompareBool(other.get(), address, Py_EQ) == 1) position = i;
    } else {
      told = false;
    }
  }
  if (!told) {
    PyObject* given[] = {call, tensor, storage};
    return is_same(Ref(PyObject_VectorcallMethod(known->names.role, given, 3, nullptr)), role);
  }
  if (position >= 0) return PyUnicode_CompareWithASCIIString(role, position == 0 ? "input" : "other") == 0;
  Ref leaf = attribute(tensor, known->names.is_leaf);
  if (!leaf) PyErr_Clear();  // a view that autograd cannot follow has a history
  return PyUnicode_CompareWithASCIIString(role, leaf.get() == Py_True ? "internal" : "result") == 0;
}

// Whether the tensor is described as that of the site.
bool fits(PyObject* site, PyObject* tensor) {
  const Names& names = known->names;
  return attribute(tensor, names.dtype).get() == known->site_dtype.of(site) &&
         is_same(attribute(tensor, names.shape), known->site_shape.of(site)) &&
         attribute(tensor, names.layout).get() == known->strided &&
         is_same(called(tensor, names.stride), known->site_strides.of(site)) &&
         is_same(attribute(tensor, names.requires_grad), known->site_requires_grad.of(site)) &&
         is_same(attribute(tensor, names.device), known->site_device.of(site));
}

// Who keeps the tensor alive besides autograd: a text, empty for nobody; null with an error.
Ref owner_of(Session* self, PyObject* call, PyObject* tensor, PyObject* storage, PyObject* address) {
  PyObject* holder = PyDict_GetItemWithError(at(self, Session::kHolders), address);
  if (holder != nullptr) return Ref::to(holder);
  if (PyDict_Contains(at(self, Session::kForeign), address) == 1) return Ref::to(known->before);
  Ref base = attribute(tensor, known->names._base);
  PyObject* root = base && base.get() != Py_None ? base.get() : tensor;
  if (Py_IS_TYPE(root, known->tensor) && attribute(root, known->names.dtype).get() == at(self, Session::kDtype))
    return Ref(PyUnicode_InternFromString(""));
  PyObject* given[] = {tensor, storage, call};
  return Ref(PyObject_Vectorcall(at(self, Session::kOwner), given, 3, nullptr));
}

// A Kept of a tensor: detached, since the tensor may be the result of the very node that will hold this.
Ref kept_of(PyObject* tensor) {
  Ref made(known->kept->tp_alloc(known->kept, 0));
  Ref alias = called(tensor, known->names.detach);
  Ref version = attribute(tensor, known->names._version);
  if (!made || !alias || !version) return Ref();
  known->kept_tensor.set(made.get(), std::move(alias));
  known->kept_version.set(made.get(), std::move(version));
  return made;
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
  Ref made(known->compressed->tp_alloc(known->compressed, 0));
  Ref fields(PyDict_Copy(known->site_fields.of(site)));
  if (!made || !fields || PyDict_SetItem(fields.get(), known->names.payload, payload.get()) < 0 ||
      PyObject_GenericSetDict(made.get(), fields.get(), nullptr) < 0)
    return Ref();
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
  Ref entry(known->entry_type->tp_alloc(known->entry_type, 0));
  Ref regions(PyList_New(1));
  Ref weak(PyWeakref_NewRef(region.get(), nullptr));
  if (!held || !entry || !regions || !weak) return Ref();
  PyList_SET_ITEM(regions.get(), 0, weak.release());
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
         known->region_dense.of(region) == Py_True &&
         known->region_dtype.of(region) == known->region_dtype.of(like) &&
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

// Stores a tensor of the site's description; None where the session has to.
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

// Stores a tensor as the forward before has; None if it is another, or has to go the full way.
PyObject* pack(PyObject* object, PyObject* tensor) {
  auto* self = reinterpret_cast<Session*>(object);
  Ref site = Ref::to(at(self, Session::kExpected));
  if (site.get() == Py_None || !is_real(tensor)) Py_RETURN_NONE;
  Ref call = attribute(at(self, Session::kTracker), known->names.call);
  if (!call) return nullptr;
  if (!Py_IS_TYPE(call.get(), known->call)) Py_RETURN_NONE;
  if (known->call_function.of(call.get()) != known->site_function.of(site.get())) Py_RETURN_NONE;
  if (!fits(site.get(), tensor)) Py_RETURN_NONE;
  PyObject* module = known->call_module.of(call.get());
  if (module == Py_None) {
    Ref found = is_called_by(known->site_caller.of(site.get())) ? Ref::to(known->site_module.of(site.get()))
                                                              : Ref(PyObject_CallNoArgs(at(self, Session::kModule)));
    if (!found) return nullptr;
    known->call_module.set(call.get(), std::move(found));
    module = known->call_module.of(call.get());
  }
  if (!is_same(Ref::to(module), known->site_module.of(site.get()))) Py_RETURN_NONE;
  Ref storage;
  Ref address = address_of(tensor, &storage);
  if (!address || !plays_role(site.get(), call.get(), tensor, storage.get(), address.get())) Py_RETURN_NONE;
  PyObject* place = known->site_place.of(site.get());
  PyObject* before = PyDict_GetItemWithError(at(self, Session::kOccurrences), place);
  PyObject* occurrence = known->site_occurrence.of(site.get());
  if (before == nullptr ? PyLong_AsLong(occurrence) != 0 : !is_same(Ref::to(before), occurrence)) Py_RETURN_NONE;
  Ref owner = owner_of(self, call.get(), tensor, storage.get(), address.get());
  if (!owner) return nullptr;
  if (!is_same(Ref::to(owner.get()), known->site_owner.of(site.get()))) Py_RETURN_NONE;
  const bool owned = PyUnicode_GetLength(owner.get()) != 0;
  if (PyDict_GET_SIZE(at(self, Session::kDue)) != 0) Py_RETURN_NONE;
  if (!owned) {
    if (PyDict_Contains(at(self, Session::kExposed), address.get()) != 0) Py_RETURN_NONE;
    if (at(self, Session::kValues) != Py_None) {
      PyObject* value = PyDict_GetItemWithError(at(self, Session::kValues), address.get());
      if (!is_same(Ref::to(value == nullptr ? Py_None : value), known->site_value.of(site.get()))) Py_RETURN_NONE;
    }
  }
  if (known->site_on_device.of(site.get()) == Py_True) {  // a captured graph draws its noise on the device
    Ref capturing(PyObject_CallNoArgs(at(self, Session::kCapturing)));
    if (!capturing) return nullptr;
    if (capturing.get() != Py_False) Py_RETURN_NONE;
  }
  // It is the same.
  if (PyDict_SetItem(at(self, Session::kOccurrences), place, known->site_following.of(site.get())) < 0) return nullptr;
  PyObject* next = known->site_next.of(site.get());
  Py_SETREF(self->objects[Session::kExpected], Py_NewRef(next));
  Py_SETREF(self->objects[Session::kLast], Py_NewRef(site.get()));
  if (owned) {
    if (PyList_Append(at(self, Session::kRecords), known->site_record.of(site.get())) < 0) return nullptr;
    return kept_of(tensor).release();
  }
  Ref held = stored_here(self, site.get(), tensor, storage.get(), address.get());
  if (held.get() != Py_None) return held.release();
  PyObject* given[] = {tensor, storage.get(), known->site_recipe.of(site.get()), call.get()};
  return PyObject_Vectorcall(at(self, Session::kStore), given, 4, nullptr);
}

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

// The tensor in whose place autograd holds this.
PyObject* unpack(PyObject*, PyObject* packed) {
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

// The site of a tensor that went the full way: the one after it is expected to be the one that came then.
PyObject* note(PyObject* object, PyObject* site) {
  auto* self = reinterpret_cast<Session*>(object);
  if (!Py_IS_TYPE(site, known->site)) {
    PyErr_Format(PyExc_TypeError, "site must be a Site, got %R", site);
    return nullptr;
  }
  PyObject* last = at(self, Session::kLast);
  const bool first = last == Py_None;
  if (!first) known->site_next.set(last, Ref::to(site));
  Py_SETREF(self->objects[Session::kLast], Py_NewRef(site));
  Py_SETREF(self->objects[Session::kExpected], Py_NewRef(known->site_next.of(site)));
  return PyBool_FromLong(first);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (known == nullptr || PyTuple_GET_SIZE(args) != 0 || kwargs == nullptr) {
    PyErr_SetString(PyExc_TypeError, "Replay takes what it goes by, by name, after bind_replay");
    return nullptr;
  }
  Ref made(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  auto* self = reinterpret_cast<Session*>(made.get());
  for (int i = 0; i < Session::kObjects; ++i) {
    PyObject* given = i < Session::kGiven ? PyDict_GetItemString(kwargs, kNames[i]) : Py_None;
    if (i == Session::kExpected) given = PyDict_GetItemString(kwargs, "first");
    if (given == nullptr) {
      PyErr_Format(PyExc_TypeError, "Replay must be given %s", i < Session::kGiven ? kNames[i] : "first");
      return nullptr;
    }
    self->objects[i] = Py_NewRef(given);
  }
  PyObject* step = PyDict_GetItemString(kwargs, "step");
  self->step = step == nullptr ? 0 : PyLong_AsUnsignedLongLong(step);
  return PyErr_Occurred() ? nullptr : made.release();
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  for (PyObject* held : reinterpret_cast<Session*>(object)->objects) Py_VISIT(held);
  return 0;
}

int clear(PyObject* object) {
  for (PyObject*& held : reinterpret_cast<Session*>(object)->objects) Py_CLEAR(held);
  return 0;
}

void deallocate(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"pack", pack, METH_O, "Stores a tensor as the forward before has; None if it is another one."},
    {"note", note, METH_O, "Notes the site of a tensor that went the full way; whether it is the first of the forward."},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef unpacking = {"unpack", unpack, METH_O, "The tensor in whose place autograd holds this."};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_methods, methods},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {0, nullptr},
};
PyType_Spec spec = {"actcore._native.Replay", sizeof(Session), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

void bind_replay(py::module_& module) {
  module.def(
      "bind_replay", [](const py::dict& given) { known = std::make_unique<Known>(given); }, py::arg("given"),
      "Names the classes and functions that Replay and unpack know.");
  module.add_object("Replay", PyType_FromSpec(&spec));
  module.add_object("unpack", PyCFunction_New(&unpacking, nullptr));
}

}  // namespace actcore
