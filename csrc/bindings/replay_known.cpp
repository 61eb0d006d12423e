#include "bindings/replay_known.h"

#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {

std::unique_ptr<Known> known;

Known::Known(const py::dict& given) {
  auto type = [&](const char* name) { return type_in(given.ptr(), name); };
  auto object = [&](const char* name) { return object_in(given.ptr(), name); };
  tensor = type("Tensor"), parameter = type("Parameter");
  call = type("Call"), site = type("Site"), view = type("View"), kept = type("Kept");
  group_affine = type("GroupAffine"), standardized = type("Standardized"), bit_mask = type("BitMask"),
  positive = type("Positive");
  exact_type = type("Exact"), beside = type("Beside");
  clamped = type("Clamped"), narrow = type("Narrow");
  PyTypeObject *record = type("Record"), *region = type("Region"), *exact = exact_type, *entry = type("Entry");
  compressed = type("Compressed");
  below = object("below_autograd");
  auto operation = [&](const char* name) {
    const py::tuple pair = given[name];
    return Operator{Py_NewRef(py::object(pair[0]).ptr()), Py_NewRef(py::object(pair[1]).ptr())};
  };
  decompress = operation("decompress"), destandardize = operation("destandardize");
  spread = operation("spread"), widen = operation("widen");
  modes = object("modes"), profiled = object("profiled"), order = object("order"), before = object("BEFORE"),
  calling = object("calling");
  compiles = object("compiles"), dispatch_mode = object("dispatch_mode"), proxy = object("PROXY");
  torch_functions = object("torch_functions");
  grad_enabled = object("is_grad_enabled"), differentiated = object("differentiated");
  call_function = {call, "function"}, call_module = {call, "module"};
  call_arguments = {call, "arguments"}, call_recomputes = {call, "recomputes"};
  call_args = {call, "_args"}, call_kwargs = {call, "_kwargs"}, site_given = {site, "given"};
  site_function = {site, "function"}, site_spec = {site, "spec"}, site_place = {site, "place"};
  site_module = {site, "module"}, site_role = {site, "role"}, site_occurrence = {site, "occurrence"};
  site_following = {site, "following"}, site_shape = {site, "shape"}, site_strides = {site, "strides"};
  site_dtype = {site, "dtype"}, site_device = {site, "device"}, site_requires_grad = {site, "requires_grad"};
  site_owner = {site, "owner"}, site_value = {site, "value"}, site_next = {site, "next"}, site_form = {site, "form"};
  site_record = {site, "record"}, site_region = {site, "region"}, site_held = {site, "held"};
  site_encoder = {site, "encoder"}, site_kernel = {site, "kernel"}, site_parts = {site, "parts"};
  site_arguments = {site, "arguments"}, site_fields = {site, "fields"}, site_noise = {site, "noise"};
  site_flat = {site, "flat"}, site_caller = {site, "caller"}, site_sharing = {site, "sharing"};
  site_still = {site, "still"}, site_whole = {site, "whole"};
  site_checked = {site, "checked"};
  record_original = {record, "original_bytes"}, record_stored = {record, "stored_bytes"};
  region_start = {region, "start"}, region_version = {region, "version"}, region_value = {region, "value"};
  region_sign = {region, "sign"}, region_sign_record = {region, "sign_record"};
  region_kept = {region, "kept"}, region_lent = {region, "lent"}, region_waiting = {region, "waiting"},
  region_numel = {region, "numel"};
  region_dense = {region, "dense"}, region_dtype = {region, "dtype"};
  region_last = {region, "last"}, region_record = {region, "record"};
  view_region = {view, "region"}, view_layout = {view, "layout"}, view_offset = {view, "offset"};
  view_sign = {view, "sign"}, view_waits = {view, "waits"};
  exact_kept = {exact, "kept"}, exact_region = {exact, "region"};
  beside_view = {beside, "view"};
  kept_tensor = {kept, "tensor"}, kept_version = {kept, "version"};
  entry_regions = {entry, "regions"}, entry_counted = {entry, "counted"};
  lent_region = {type("LastRestored"), "region"};
  region_lazy = {region, "lazy"}, region_layout = {region, "layout"};
  entry_type = entry;
  as_in_memory = object("AS_IN_MEMORY"), get_bits = object("get_bits"), hold_whole = object("hold_whole");
  get_autocast = object("get_autocast"), enter_autocast = object("enter_autocast");
  explain_change = object("explain_change"), lay_out = object("lay_out"), find_local = object("find_local");
  set_grad_enabled = object("set_grad_enabled"), used_on = object("used_on");
  disable_torch_function = object("DisableTorchFunction");
  hold_statistics = object("hold_statistics"), compute_after = object("compute_after");
  noted = type("Noted"), slot = type("Slot"), formula = type("Formula"), bound = type("Bound");
  stored = type("Stored"), there = type("There"), made = type("Made"), inner = type("Inner");
  recomputed = type("Recomputed");
  PyTypeObject *template_ = type("Template"), *read = type("Read");
  noted_function = {noted, "function"}, noted_used = {noted, "used"}, noted_template = {noted, "template"};
  template_args = {template_, "args"}, template_kwargs = {template_, "kwargs"};
  template_overwrites = {template_, "overwrites"}, template_reads = {template_, "reads"};
  template_formula = {template_, "formula"}, slot_index = {slot, "index"};
  read_kind = {read, "kind"}, read_place = {read, "place"}, read_dtype = {read, "dtype"};
  read_noted = {read, "noted"}, read_holder = {read, "holder"};
  formula_call = {formula, "call"}, formula_operands = {formula, "operands"}, formula_place = {formula, "place"};
  formula_dtype = {formula, "dtype"}, formula_version = {formula, "version"}, formula_exactly = {formula, "exactly"};
  formula_autocast = {formula, "autocast"}, formula_names = {formula, "names"}, formula_bound = {formula, "bound"};
  formula_noted = {formula, "noted"}, formula_after = {formula, "after"};
  stored_region = {stored, "region"}, stored_place = {stored, "place"}, there_kept = {there, "kept"};
  made_formula = {made, "formula"}, made_place = {made, "place"};
  inner_bound = {inner, "bound"}, inner_place = {inner, "place"};
  bound_formula = {bound, "formula"}, bound_held = {bound, "held"}, bound_bits = {bound, "bits"};
  bound_waiting = {bound, "waiting"}, bound_lent = {bound, "lent"};
  recomputed_bound = {recomputed, "bound"}, recomputed_place = {recomputed, "_place"};
  recomputed_last = {recomputed, "_last"}, recomputed_waits = {recomputed, "_waits"},
  last_bound = {type("LastComputed"), "_bound"}, site_formula = {site, "formula"};
  for (PyTypeObject* copied :
       {record, region, view, exact, entry, kept, beside, formula, stored, there, made, inner, bound, recomputed})
    if (!has_slots_alone(copied))
      throw std::invalid_argument(std::string(copied->tp_name) + " must have __slots__ and no base with fields");
}

bool is_real(PyObject* tensor) { return Py_IS_TYPE(tensor, known->tensor) || Py_IS_TYPE(tensor, known->parameter); }

PyObject* Operator::of(PyObject* tensor) const {
  // A subclass dispatches: a FakeTensor says that it is on the CPU, and has no memory.
  if (kernel == Py_None || !is_real(tensor) || !has(tensor, known->names.is_cpu, Py_True)) return by_torch;
  for (PyObject* seen_by : {known->modes, known->profiled}) {
    Ref found(PyObject_CallNoArgs(seen_by));
    if (!found) go_on();
    if (!found || PyObject_IsTrue(found.get()) != 0) return by_torch;
  }
  return kernel;
}

bool is_same(Ref found, PyObject* expected) {
  if (!found || expected == nullptr) {
    go_on();
    return false;
  }
  if (found.get() == expected) return true;
  const int equal = PyObject_RichCompareBool(found.get(), expected, Py_EQ);
  if (equal < 0) go_on();
  return equal == 1;
}

bool is_as_in_memory(PyObject* tensor) {
  const Names& names = known->names;
  return is_same(called(tensor, names.is_neg), Py_False) && is_same(called(tensor, names.is_conj), Py_False) &&
         is_same(called(tensor, names._is_zerotensor), Py_False);
}

bool is_held(PyObject* region) {
  return known->region_value.of(region) != Py_None || known->region_kept.of(region) != Py_None;
}

Ref address_of(PyObject* tensor, Ref* storage) {
  *storage = called(tensor, known->names.untyped_storage);
  Ref address = *storage ? attribute(storage->get(), known->names._cdata) : Ref();
  if (!address) go_on();
  return address;
}

}  // namespace actcore
