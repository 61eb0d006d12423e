// What a forward that is followed by its calls gives to the segments whose operators they run, and what it asks these for.
#include "bindings/followed.h"
#include "bindings/repeats.h"
#include "bindings/replay_stores.h"
#include "bindings/segments.h"
#include "bindings/types.h"

namespace actcore {
namespace {

// The fields of a Take, and of an ArgumentForm and a Geometry, which are tuples.
enum TakeField {
  kKind,
  kSegment,
  kPlace,
  kArgument,
  kValue,
  kGeometry,
  kDevice,
  kKnown,
  kKey,
  kOuter,
  kShares,
  kUnsaved
};
enum FormField { kFormValue, kFormGeometry, kFormRequiresGrad, kFormDevice };
enum GeometryField { kSize, kStride, kOffset, kDtype, kConjugate, kNegative };

PyObject* field(PyObject* tuple, int which) { return PyTuple_GET_ITEM(tuple, which); }

// Whether a value that a function is given is the one of a pattern, as make_pattern makes it.
bool fits_pattern(PyObject* pattern, PyObject* given) {
  if (pattern == reinterpret_cast<PyObject*>(follows->tensor)) return is_real(given);
  if (!PyTuple_Check(pattern) || PyTuple_GET_SIZE(pattern) != 2) return false;
  PyObject* inner = field(pattern, 1);
  if (reinterpret_cast<PyObject*>(Py_TYPE(given)) != field(pattern, 0)) return false;
  if (PyFloat_CheckExact(given)) return is_same(called(given, follows->name_hex), inner);
  if (PyDict_CheckExact(given)) {
    if (PyDict_GET_SIZE(given) != PyTuple_GET_SIZE(inner)) return false;
    PyObject *name, *value;
    Py_ssize_t i = 0;
    for (Py_ssize_t at = 0; PyDict_Next(given, &at, &name, &value); ++i) {
      PyObject* pair = field(inner, static_cast<int>(i));
      if (!is_same(Ref::to(name), field(pair, 0)) || !fits_pattern(field(pair, 1), value)) return false;
    }
    return true;
  }
  if (PyList_Check(given) || PyTuple_Check(given)) {
    if (PySequence_Fast_GET_SIZE(given) != PyTuple_GET_SIZE(inner)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inner); ++i)
      if (!fits_pattern(PyTuple_GET_ITEM(inner, i), PySequence_Fast_GET_ITEM(given, i))) return false;
    return true;
  }
  return !PyComplex_Check(given) && !PySlice_Check(given) && is_same(Ref::to(given), inner);
}

bool fits_arguments(PyObject* pattern, PyObject* call) {
  if (!PyTuple_Check(pattern) || PyTuple_GET_SIZE(pattern) != 2) return false;
  PyObject* both = field(pattern, 1);  // of a tuple of args and kwargs
  return PyTuple_Check(both) && PyTuple_GET_SIZE(both) == 2 &&
         fits_pattern(field(both, 0), follows->call_args.of(call)) &&
         fits_pattern(field(both, 1), follows->call_kwargs.of(call));
}

// Whether a tensor is described as the other forward's, whose value it has.
bool fits_form(PyObject* form, PyObject* tensor, PyObject* value) {
  const Names& names = known->names;
  PyObject *geometry = field(form, kFormGeometry), *expected = field(form, kFormValue);
  const bool same_value =
      value == nullptr ? PyLong_AsLong(expected) == -1 : is_same(Ref::to(value), expected);  // UNPLANNED
  return same_value && has(tensor, names.dtype, field(geometry, kDtype)) &&
         is_same(attribute(tensor, names.shape), field(geometry, kSize)) &&
         is_same(called(tensor, names.stride), field(geometry, kStride)) &&
         is_same(called(tensor, names.storage_offset), field(geometry, kOffset)) &&
         is_same(called(tensor, names.is_conj), field(geometry, kConjugate)) &&
         is_same(called(tensor, names.is_neg), field(geometry, kNegative)) &&
         is_same(attribute(tensor, names.requires_grad), field(form, kFormRequiresGrad)) &&
         is_same(attribute(tensor, names.device), field(form, kFormDevice));
}

bool has_autocast(PyObject* expected, PyObject* arguments) {
  Ref any(PyObject_CallNoArgs(follows->autocast_enabled));
  if (any.get() == Py_False) return PyTuple_Check(expected) && PyTuple_GET_SIZE(expected) == 0;
  return any && is_same(Ref(PyObject_CallOneArg(follows->get_autocast, arguments)), expected);
}

long counted(PyObject* function) {
  Ref count(PyObject_CallNoArgs(function));
  return count ? PyLong_AsLong(count.get()) : -1;
}

Ref segment_at(FollowedCalls* self, PyObject* key) {
  Ref found = Ref::to(PyDict_GetItemWithError(at(self, FollowedCalls::kSegments), key));
  if (found || PyErr_Occurred()) return found;
  return Ref(PyObject_CallMethodOneArg(&self->ob_base, follows->name_segment, key));
}

// What the forward before has stored of a tensor at this place, in the form in which a repetition holds it; None where it
// is another one now.
Ref stored_for_repetition(FollowedCalls* self, PyObject* take, PyObject* tensor) {
  PyObject* replay = at(self, FollowedCalls::kReplay);
  PyObject* site = field(take, kKnown) == Py_None ? Py_None : follows->site.of(field(take, kKnown));
  if (site == Py_None || replay == Py_None) return Ref::to(Py_None);
  Ref held = hold_as_before(replay, site, tensor);
  if (!held || held.get() == Py_None) return held;
  if (Py_IS_TYPE(held.get(), known->view)) {  // it does not count as a view that is still to come
    if (known->view_waits.of(held.get()) == Py_True) {
      PyObject* region = known->view_region.of(held.get());
      const long waiting = PyLong_AsLong(known->region_waiting.of(region));
      known->view_waits.set(held.get(), Ref::to(Py_False));
      known->region_waiting.set(region, Ref(PyLong_FromLong(waiting - 1)));
    }
    held = object_with(known->beside, known->beside_view, held.get());
  }
  // Autograd alone would not keep it.
  if (held && field(take, kUnsaved) == Py_True && !count_as_unsaved(replay)) return Ref();
  return held;
}

// What a segment is given for a tensor that its operator reads; null without an error where Python has to tell.
Ref held_for(FollowedCalls* self, PyObject* take, PyObject* tensor) {
  PyObject *key = field(take, kKey), *read = at(self, FollowedCalls::kRead);
  if (key == Py_None) return Ref();
  Ref packed;
  if (PyTuple_GET_SIZE(key) == 0) {
    packed = kept_of(tensor);
  } else {
    packed = Ref::to(PyDict_GetItemWithError(read, key));
    if (!packed && !PyErr_Occurred()) {
      packed = stored_for_repetition(self, take, tensor);
      if (packed.get() == Py_None) return Ref();
      if (packed && PyDict_SetItem(read, key, packed.get()) < 0) return Ref();
    }
  }
  return packed ? object_with(repeats->held_tensor, repeats->held_packed, packed.get()) : std::move(packed);
}

// The same of anything that a segment takes.
Ref given_for(FollowedCalls* self, PyObject* take, PyObject* call) {
  PyObject *kind = field(take, kKind), *arguments = follows->call_arguments.of(call);
  if (field(take, kArgument) == Py_None || field(take, kGeometry) != Py_None) return Ref();
  const Py_ssize_t place = PyLong_AsSsize_t(field(take, kArgument));
  if (place < 0 || place >= PyList_GET_SIZE(arguments)) return Ref();
  PyObject* tensor = PyList_GET_ITEM(arguments, place);
  if (kind == follows->held) return held_for(self, take, tensor);
  if (kind == follows->scratch) {
    Ref like = called(tensor, known->names.detach);
    return like ? object_with(repeats->scratch, repeats->scratch_like, like.get()) : std::move(like);
  }
  if (kind != follows->elsewhere || field(take, kOuter) == Py_None) return Ref();
  Ref outer = segment_at(self, field(take, kOuter));
  Ref handle = outer ? handle_of(outer.get(), field(take, kValue), tensor, Py_None, field(take, kShares) == Py_True)
                     : std::move(outer);
  return handle ? object_with(repeats->elsewhere, repeats->elsewhere_made, handle.get()) : std::move(handle);
}

}  // namespace

bool is_given_same(FollowedCalls* self, PyObject* repeated, PyObject* call) {
  PyObject *arguments = follows->call_arguments.of(call), *forms = follows->arguments.of(repeated);
  PyObject* sharing = follows->sharing.of(repeated);
  if (!PyList_CheckExact(arguments) || PyList_GET_SIZE(arguments) != PyTuple_GET_SIZE(forms) || known == nullptr ||
      counted(follows->function_modes) != 0 || counted(follows->dispatch_modes) != self->modes ||
      !has_autocast(follows->autocast.of(repeated), arguments))
    return false;
  const Py_ssize_t count = PyList_GET_SIZE(arguments);
  Ref addresses(PyTuple_New(count));
  for (Py_ssize_t i = 0; addresses && i < count; ++i) {
    PyObject* tensor = PyList_GET_ITEM(arguments, i);
    Ref storage;
    Ref address = is_real(tensor) ? address_of(tensor, &storage) : Ref();
    if (!address) return false;
    Py_ssize_t first = 0;  // of those in the same memory
    while (first < i && !is_same(Ref::to(PyTuple_GET_ITEM(addresses.get(), first)), address.get())) ++first;
    PyObject* value = PyDict_GetItemWithError(at(self, FollowedCalls::kValues), address.get());
    if (PyLong_AsSsize_t(PyTuple_GET_ITEM(sharing, i)) != first ||
        !fits_form(PyTuple_GET_ITEM(forms, i), tensor, value))
      return false;
    PyTuple_SET_ITEM(addresses.get(), i, address.release());
  }
  return addresses && fits_arguments(follows->pattern.of(repeated), call);
}

bool give(FollowedCalls* self, PyObject* takes, PyObject* call) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(takes); ++i) {
    PyObject* take = PyTuple_GET_ITEM(takes, i);
    Ref object = segment_at(self, field(take, kSegment));
    Segment* segment = object ? segment_of(object.get()) : nullptr;
    if (segment == nullptr) return false;
    if (at(segment, Segment::kCalls) == Py_None) continue;  // a backward inside of the forward has used it up
    Ref given = given_for(self, take, call);
    if (!given && !PyErr_Occurred()) {
      PyObject* asked[] = {&self->ob_base, take, call};
      given = Ref(PyObject_VectorcallMethod(follows->name_given, asked, 3, nullptr));
    }
    if (!given) return false;
    Ref all = Ref::to(at(segment, Segment::kGiven));
    if (PyList_SetItem(all.get(), PyLong_AsSsize_t(field(take, kPlace)), given.release()) < 0) return false;
  }
  return true;
}

bool misses_hidden(FollowedCalls* self, PyObject* takes) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(takes); ++i) {
    PyObject* take = PyTuple_GET_ITEM(takes, i);
    if (field(take, kArgument) == Py_None &&
        PyDict_Contains(at(self, FollowedCalls::kHidden), field(take, kValue)) == 0)
      return true;
  }
  return false;
}

bool advance_all(FollowedCalls* self, PyObject* advances) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(advances); ++i) {
    PyObject* one = PyTuple_GET_ITEM(advances, i);
    Ref object = segment_at(self, field(one, 0));
    Segment* segment = object ? segment_of(object.get()) : nullptr;
    if (segment == nullptr || !advance(segment, PyLong_AsSsize_t(field(one, 1)), field(one, 2))) return false;
  }
  return true;
}

PyObject* handle_in(PyObject* object, PyObject* const* given, Py_ssize_t count) {
  auto* self = reinterpret_cast<FollowedCalls*>(object);
  if (count < 1 || count > 2 || at(self, FollowedCalls::kMakers) == nullptr) {
    PyErr_SetString(PyExc_TypeError, "handle takes a tensor, and how it is stored later or None");
    return nullptr;
  }
  PyObject *tensor = given[0], *later = count == 2 ? given[1] : Py_None;
  if (self->stopped) {
    PyObject* asked[] = {object, tensor, later};
    return PyObject_VectorcallMethod(follows->name_handle_of_tape, asked, 3, nullptr);
  }
  Ref storage;
  Ref address = is_real(tensor) ? address_of(tensor, &storage) : Ref();
  if (!address) Py_RETURN_NONE;
  PyObject* value = PyDict_GetItemWithError(at(self, FollowedCalls::kValues), address.get());
  Ref own = Ref::to(value);
  PyObject* key = own ? PyDict_GetItemWithError(at(self, FollowedCalls::kMakers), own.get()) : nullptr;
  if (key == nullptr) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
  Ref segment = segment_at(self, key);
  Segment* owner = segment ? segment_of(segment.get()) : nullptr;
  if (owner == nullptr) return nullptr;
  // A backward in the middle of this forward may have used the segment up.
  if (at(owner, Segment::kCalls) == Py_None) Py_RETURN_NONE;
  Ref handle = handle_of(segment.get(), own.get(), tensor, later, false);
  if (!handle) return nullptr;
  PyObject* running = running_call(self);
  if (running != nullptr && PySet_Contains(follows->made.of(running), own.get()) == 1) {
    Ref weak(PyWeakref_NewRef(handle.get(), nullptr));
    Ref pair(weak ? PyTuple_Pack(2, weak.get(), tensor) : nullptr);
    if (!pair || PyList_Append(at(self, FollowedCalls::kPending), pair.get()) < 0) return nullptr;
  }
  return handle.release();
}

}  // namespace actcore
