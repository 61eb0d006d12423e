// The classes of Python that the fast path knows, and what it asks of tensors.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/kernels.h"
#include "bindings/objects.h"

namespace actcore {

// Interned, so that a lookup compares pointers.
struct Names {
  static PyObject* of(const char* name) { return PyUnicode_InternFromString(name); }
  PyObject* shape = of("shape");
  PyObject* stride = of("stride");
  PyObject* dtype = of("dtype");
  PyObject* device = of("device");
  PyObject* layout = of("layout");
  PyObject* item = of("item");
  PyObject* is_cpu = of("is_cpu");
  PyObject* requires_grad = of("requires_grad");
  PyObject* is_leaf = of("is_leaf");
  PyObject* untyped_storage = of("untyped_storage");
  PyObject* _cdata = of("_cdata");
  PyObject* _base = of("_base");
  PyObject* _version = of("_version");
  PyObject* storage_offset = of("storage_offset");
  PyObject* nbytes = of("nbytes");
  PyObject* _weak_ref = of("_weak_ref");
  PyObject* detach = of("detach");
  PyObject* as_strided = of("as_strided");
  PyObject* is_neg = of("is_neg");
  PyObject* is_conj = of("is_conj");
  PyObject* _is_zerotensor = of("_is_zerotensor");
  PyObject* payload = of("payload");
  PyObject* codec = of("codec");
  PyObject* bits = of("bits");
  PyObject* group_size = of("group_size");
  PyObject* groups = of("groups");
  PyObject* low = of("low");
  PyObject* high = of("high");
  PyObject* __dict__ = of("__dict__");
  PyObject* __enter__ = of("__enter__");
  PyObject* __exit__ = of("__exit__");
  PyObject* unpack = of("unpack");
  PyObject* role = of("role");
  PyObject* values = of("values");
  PyObject* compressed = of("compressed");
  PyObject* clone = of("clone");
  PyObject* note = of("note");
};

// An operator, and the kernel that does the same on the CPU; None where there is none.
struct Operator {
  PyObject *by_torch = nullptr, *kernel = Py_None;

  // What to call with a tensor: the operator, where a mode or a profiler of torch is to see it.
  PyObject* of(PyObject* tensor) const;
};

// The classes and functions of Python that the fast path knows.
struct Known {
  explicit Known(const pybind11::dict& given);

  PyTypeObject *tensor, *parameter, *call, *site, *view, *kept, *group_affine, *standardized, *bit_mask, *positive,
      *narrow, *clamped, *compressed, *entry_type, *exact_type, *beside, *noted, *slot, *formula, *stored, *there,
      *made, *inner, *bound, *recomputed;
  PyObject *below, *modes, *profiled, *order, *before, *calling, *compiles, *dispatch_mode, *proxy, *torch_functions,
      *grad_enabled, *differentiated, *as_in_memory, *get_bits, *hold_whole, *get_autocast, *enter_autocast,
      *explain_change, *lay_out, *find_local, *set_grad_enabled, *disable_torch_function, *used_on, *hold_statistics,
      *compute_after;
  Operator decompress, destandardize, spread, widen;
  Field call_function, call_module, call_arguments, call_recomputes, call_args, call_kwargs;
  Field site_function, site_spec, site_place, site_module, site_role, site_occurrence, site_following, site_shape;
  Field site_strides, site_dtype, site_device, site_requires_grad, site_owner, site_value, site_next, site_form;
  Field site_record, site_region, site_held, site_encoder, site_arguments, site_parts, site_fields, site_noise,
      site_kernel, site_flat, site_caller, site_sharing, site_given, site_still, site_whole, site_checked, site_formula;
  Field region_lazy, record_original, record_stored, region_start, region_version, region_value, region_sign,
      region_sign_record, region_kept, region_lent, region_layout;
  Field region_waiting, region_numel, region_dense, region_dtype, region_last, region_record, view_region, view_layout,
      view_offset, view_sign;
  Field view_waits, beside_view, lent_region, exact_kept, exact_region, kept_tensor, kept_version, entry_regions,
      entry_counted;
  Field noted_function, noted_used, noted_template, template_args, template_kwargs, template_overwrites, template_reads,
      template_formula, read_kind, read_place, read_dtype, read_noted, read_holder, slot_index;
  Field formula_call, formula_operands, formula_place, formula_dtype, formula_version, formula_exactly,
      formula_autocast, formula_names, formula_bound, formula_noted, formula_after;
  Field stored_region, stored_place, there_kept, made_formula, made_place, inner_bound, inner_place;
  Field bound_formula, bound_held, bound_bits, bound_waiting, bound_lent, recomputed_bound, recomputed_place,
      recomputed_last, recomputed_waits, last_bound;
  Names names;
};

extern std::unique_ptr<Known> known;

// What the fast path of one session goes by.
struct Replay {
  enum Member {
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
    kPut,
    kAgain,
    kMeet,
    kFormulas,
    kGiven,
    kExpected = kGiven,
    kLast,
    kMembers,
  };
  PyObject ob_base;
  PyObject* members[kMembers];
  uint64_t step;
};

constexpr const char* kNames[Replay::kGiven] = {
    "tracker", "occurrences", "holders", "foreign", "exposed",   "due", "records", "entries", "lent",     "dtype",
    "values",  "store",       "module",  "owner",   "capturing", "put", "again",   "meet",    "formulas",
};

inline PyObject* at(Replay* self, Replay::Member which) { return self->members[which]; }

// Whether a tensor is torch's own, with elements of its own.
bool is_real(PyObject* tensor);
// Whether an attribute, or what a method without arguments returns, is what is expected. What cannot be asked is not.
bool is_same(Ref found, PyObject* expected);
// Whether the memory holds the elements of a tensor as they are read.
bool is_as_in_memory(PyObject* tensor);
// Whether a region has what a tensor can be restored from.
bool is_held(PyObject* region);
// The address of a tensor's storage, as a number of Python; null where it has none to ask for.
Ref address_of(PyObject* tensor, Ref* storage);

// An object of a class that has __slots__ alone, with these fields. The collector does not look at it.
template <typename... More>
Ref object_with(PyTypeObject* type, const Field& field, PyObject* value, const More&... more) {
  Ref object;
  if constexpr (sizeof...(more) == 0)
    object = Ref(type->tp_alloc(type, 0));
  else
    object = object_with(type, more...);
  if (!object) return object;
  field.set(object.get(), Ref::to(value));
  untrack(object.get());
  return object;
}

// A block that a context manager of Python is entered for.
class Block {
 public:
  explicit Block(Ref context) : context_(std::move(context)) {
    if (context_) entered_ = static_cast<bool>(called(context_.get(), known->names.__enter__));
  }
  ~Block() {
    if (!entered_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* arguments[] = {context_.get(), Py_None, Py_None, Py_None};
    Ref left(PyObject_VectorcallMethod(known->names.__exit__, arguments, 4, nullptr));
    PyErr_Restore(type, value, trace);
  }
  Block(const Block&) = delete;
  // Whether it was entered; otherwise there is an error.
  explicit operator bool() const { return entered_; }

 private:
  Ref context_;
  bool entered_ = false;
};

// A block in which a function is called below autograd, which a kernel is by itself.
class Below {
 public:
  explicit Below(PyObject* function)
      : needed_(!is_kernel(function)), block_(needed_ ? Ref(PyObject_CallNoArgs(known->below)) : Ref()) {}
  // Whether the block was entered, if that is needed; otherwise there is an error.
  explicit operator bool() const { return block_ || !needed_; }

 private:
  const bool needed_;
  Block block_;
};

}  // namespace actcore
