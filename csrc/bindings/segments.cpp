// What integrations' runtime does of operators that backward repeats: it counts the saved tensors that they make, and
// runs them when the first of these is read. integrations/runtime/repeating/segments.py says what the objects are.
// Segments whose values are stored once they are recomputed, and calls that draw, are left to Python's methods in part.
#include "bindings/segments.h"

#include <cstddef>
#include <memory>
#include <string>

#include "bindings/repeats.h"
#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

constexpr const char* kNoSegment = "the segment of a Handle is gone: the garbage collector has freed it";
constexpr Py_ssize_t kPrograms = 256;  // of a segment, which a forward of changing shape may ask for in ever new ways

// What a value has become: another part of the same memory may have been written since it was saved.
Ref latest(Segment* self, PyObject* value) {
  Ref now = Ref::to(value);
  while (PyObject* next = PyDict_GetItemWithError(at(self, Segment::kBecomes), now.get())) now = Ref::to(next);
  return PyErr_Occurred() ? Ref() : std::move(now);
}

// Takes an entry out of a dictionary that may not have it. False: an error.
bool drop(PyObject* dict, PyObject* key) {
  const int there = PyDict_Contains(dict, key);
  return there == 0 || (there > 0 && PyDict_DelItem(dict, key) == 0);
}

bool count_one(Segment* self, PyObject* released) {
  Ref value = latest(self, released);
  if (!value) return false;
  PyObject* counted = PyDict_GetItemWithError(at(self, Segment::kHandles), value.get());
  if (counted == nullptr) return false;
  const long rest = PyLong_AsLong(counted) - 1;
  if (rest > 0) {
    Ref fewer(PyLong_FromLong(rest));
    return fewer && PyDict_SetItem(at(self, Segment::kHandles), value.get(), fewer.get()) == 0;
  }
  return PyDict_DelItem(at(self, Segment::kHandles), value.get()) == 0 &&
         drop(at(self, Segment::kWaiting), value.get()) && drop(at(self, Segment::kMade), value.get());
}

// Counts the saved tensors that are gone. Errors are told of, not raised: this is called where objects are freed.
void settle(Segment* self) {
  PyObject* released = at(self, Segment::kReleased);
  while (PyList_GET_SIZE(released) != 0) {
    Ref value = Ref::to(PyList_GET_ITEM(released, 0));
    if (PyList_SetSlice(released, 0, 1, nullptr) < 0 || !count_one(self, value.get()))
      PyErr_WriteUnraisable(&self->ob_base);
  }
}

// A block in which a segment is used by this thread alone: backward has a thread for each device. What is released
// meanwhile is counted at its end.
class Use {
 public:
  explicit Use(Segment* self) : self_(self), object_(Ref::to(&self->ob_base)) {
    entered_ = static_cast<bool>(called(at(self, Segment::kLock), repeats->acquire));
    if (entered_) ++self->uses;
  }
  ~Use() {
    if (!entered_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (self_->uses == 1) settle(self_);
    --self_->uses;
    if (!called(at(self_, Segment::kLock), repeats->release)) PyErr_WriteUnraisable(object_.get());
    PyErr_Restore(type, value, trace);
  }
  Use(const Use&) = delete;
  // Whether it was entered; otherwise there is an error.
  explicit operator bool() const { return entered_; }

 private:
  Segment* self_;
  Ref object_;
  bool entered_ = false;
};

// A block that others of its kind are inside of, as deep as Python's calls may be.
class Recursion {
 public:
  Recursion() : entered_(Py_EnterRecursiveCall(" while operators are repeated") == 0) {}
  ~Recursion() {
    if (entered_) Py_LeaveRecursiveCall();
  }
  Recursion(const Recursion&) = delete;
  // Whether it was entered; otherwise there is an error.
  explicit operator bool() const { return entered_; }

 private:
  const bool entered_;
};

// What a method of Segment's in Python says. -1: an error.
int asked_of(Segment* self, PyObject* method, PyObject* value) {
  Ref found(PyObject_CallMethodOneArg(&self->ob_base, method, value));
  return found ? PyObject_IsTrue(found.get()) : -1;
}

// The values of a segment that are to be made with the one that is asked for. The saved ones of which a form is stored
// need not be. `rests` are those of which one will be.
bool find_needed(Segment* self, PyObject* asked, PyObject* needed, PyObject* rests) {
  Ref values(PyDict_Keys(at(self, Segment::kHandles)));
  for (Py_ssize_t i = 0; values && i < PyList_GET_SIZE(values.get()); ++i) {
    PyObject* value = PyList_GET_ITEM(values.get(), i);
    const int waits = PyDict_Contains(at(self, Segment::kWaiting), value);
    const int same = PyObject_RichCompareBool(value, asked, Py_EQ);
    if (waits < 0 || same < 0) return false;
    const int there = waits && !same ? asked_of(self, repeats->is_stored, value) : 0;
    if (there < 0 || (there == 0 && PyList_Append(needed, value) < 0)) return false;
    if (there == 0 && waits && PyList_Append(rests, value) < 0) return false;
  }
  return static_cast<bool>(values);
}

bool is_program(PyObject* object) {
  if (!PyTuple_Check(object)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    PyObject* step = PyTuple_GET_ITEM(object, i);
    if (!PyTuple_Check(step) || PyTuple_GET_SIZE(step) != 3 || !Py_IS_TYPE(PyTuple_GET_ITEM(step, 0), repeats->call) ||
        !PyTuple_Check(PyTuple_GET_ITEM(step, 1)) || !PyTuple_Check(PyTuple_GET_ITEM(step, 2)))
      return false;
  }
  return true;
}

// The calls that make a value, as Segment._program has them. Those of a forward that calls the same as the one before
// are known.
Ref program_of(Segment* self, PyObject* asked) {
  Ref needed(PyList_New(0)), rests(PyList_New(0));
  if (!needed || !rests || !find_needed(self, asked, needed.get(), rests.get())) return Ref();
  Ref all(PyList_AsTuple(needed.get())), stored(PyList_AsTuple(rests.get())), done(PyLong_FromSsize_t(self->done));
  Ref key(all && stored && done ? PyTuple_Pack(4, asked, done.get(), all.get(), stored.get()) : nullptr);
  if (!key) return Ref();
  PyObject* programs = at(self, Segment::kPrograms);
  if (programs == nullptr || !PyDict_Check(programs)) programs = Py_None;
  if (programs != Py_None) {
    if (PyObject* found = PyDict_GetItemWithError(programs, key.get())) return Ref::to(found);
    if (PyErr_Occurred()) return Ref();
  }
  PyObject* given[] = {&self->ob_base, all.get(), stored.get()};
  Ref program(PyObject_VectorcallMethod(repeats->program, given, 3, nullptr));
  if (program && !is_program(program.get())) PyErr_SetString(PyExc_TypeError, "_program must return a tuple of Step");
  if (programs != Py_None && PyDict_GET_SIZE(programs) >= kPrograms) PyDict_Clear(programs);
  if (program && programs != Py_None && PyDict_SetItem(programs, key.get(), program.get()) < 0) return Ref();
  return PyErr_Occurred() ? Ref() : std::move(program);
}

// Has other segments make what the calls read of theirs. First, before anything is made here that would be alive
// meanwhile.
bool prepare_others(PyObject* program, PyObject* given) {
  for (Py_ssize_t i = PyTuple_GET_SIZE(program) - 1; i >= 0; --i) {
    PyObject* takes = repeats->call_takes.of(PyTuple_GET_ITEM(PyTuple_GET_ITEM(program, i), 0));
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(takes); ++j) {
      Ref other = Ref::to(PyList_GetItem(given, PyLong_AsSsize_t(PyTuple_GET_ITEM(takes, j))));
      if (!other) return false;
      if (!Py_IS_TYPE(other.get(), repeats->elsewhere)) continue;
      Ref made = Ref::to(repeats->elsewhere_made.of(other.get()));
      if (Py_IS_TYPE(made.get(), handle_type) ? !prepare(reinterpret_cast<Handle*>(made.get()))
                                              : !called(made.get(), repeats->prepare))
        return false;
    }
  }
  return true;
}

// Runs one call of a program, and lets go of what nothing needs after it.
bool step(Segment* self, PyObject* one, PyObject* asked, PyObject* made, PyObject* given, bool retained, Grad* grad) {
  PyObject *call = PyTuple_GET_ITEM(one, 0), *takes = repeats->call_takes.of(call);
  if (!repeat_call(call, made, given, grad)) return false;
  for (Py_ssize_t i = 0; !retained && i < PyTuple_GET_SIZE(takes); ++i)  // frees the tensors that were kept for it
    if (PyList_SetItem(given, PyLong_AsSsize_t(PyTuple_GET_ITEM(takes, i)), Py_NewRef(Py_None)) < 0) return false;
  PyObject *ends = PyTuple_GET_ITEM(one, 1), *rests = PyTuple_GET_ITEM(one, 2);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ends); ++i)
    if (!drop(made, PyTuple_GET_ITEM(ends, i))) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rests); ++i) {
    PyObject* value = PyTuple_GET_ITEM(rests, i);
    PyObject* told[] = {&self->ob_base, value, made};
    if (!Ref(PyObject_VectorcallMethod(repeats->store, told, 3, nullptr))) return false;
    const int same = PyObject_RichCompareBool(value, asked, Py_EQ);
    const int only = same == 0 ? asked_of(self, repeats->only_stored, value) : 0;
    if (same < 0 || only < 0 || (only && !drop(made, value))) return false;
  }
  return true;
}

// Recomputes a value, and with it all saved values that are not there.
bool repeat(Segment* self, PyObject* asked, bool retained) {
  Ref calls = Ref::to(at(self, Segment::kCalls)), given = Ref::to(at(self, Segment::kGiven));
  if (calls.get() == Py_None) {
    PyErr_SetObject(PyExc_RuntimeError, repeats->used_up);
    return false;
  }
  if (!calls || !given || !PyList_Check(given.get())) {
    PyErr_SetString(PyExc_TypeError, "a segment must have calls, and a list of what these are given");
    return false;
  }
  Ref program = program_of(self, asked);
  if (!program || !prepare_others(program.get(), given.get())) return false;
  Ref made(PyDict_New()), empty(PyList_New(0));
  if (!made || !empty) return false;
  if (!retained) {
    Py_SETREF(self->members[Segment::kCalls], Py_NewRef(Py_None));
    Py_SETREF(self->members[Segment::kGiven], empty.release());
  }
  {
    Repeating repeating;
    if (!repeating) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program.get()); ++i)
      if (!step(self, PyTuple_GET_ITEM(program.get(), i), asked, made.get(), given.get(), retained, repeating.grad()))
        return false;
    if (!repeating.leave()) return false;
  }
  Py_SETREF(self->members[Segment::kMade], made.release());
  PyDict_Clear(at(self, Segment::kSeen));
  return true;
}

bool remake(Segment* self, PyObject* asked, bool retained) {
  if (repeat(self, asked, retained)) return true;
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  if (Ref(PyObject_CallMethodOneArg(&self->ob_base, repeats->explain, value))) {
    PyErr_Restore(type, value, trace);
    return false;
  }
  Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
  return false;
}

// Whether what is read now may be read once more: the graph is retained, or this is not in a backward. -1: an error.
int is_retained() {
  Ref found(PyObject_CallNoArgs(repeats->is_retained));
  return found ? PyObject_IsTrue(found.get()) : -1;
}

bool has_form(Handle* handle) {
  return at(handle, Handle::kLater) != Py_None || at(handle, Handle::kStored) != Py_None;
}

// Lets a value go that is made, where nothing else reads it: all that it stands for is stored, or, where the graph is
// retained, all saved tensors of it have been read. They stay alive then, and what is made for them should not.
bool drop_read(Segment* self, Handle* handle, PyObject* value, bool keeps) {
  const int stored = has_form(handle) ? asked_of(self, repeats->only_stored, value) : 0;
  if (stored != 0) return stored > 0 && drop(at(self, Segment::kMade), value);
  if (!keeps) return true;
  PyObject* all = at(self, Segment::kSeen);
  Ref seen = Ref::to(PyDict_GetItemWithError(all, value)), one(PyLong_FromVoidPtr(handle));
  if (!seen && !PyErr_Occurred()) {
    seen = Ref(PySet_New(nullptr));
    if (!seen || PyDict_SetItem(all, value, seen.get()) < 0) return false;
  }
  if (!seen || !one || PySet_Add(seen.get(), one.get()) < 0) return false;
  PyObject* count = PyDict_GetItemWithError(at(self, Segment::kHandles), value);
  if (count == nullptr && PyErr_Occurred()) return false;
  if (PySet_GET_SIZE(seen.get()) < (count == nullptr ? 0 : PyLong_AsSsize_t(count))) return true;
  return drop(at(self, Segment::kMade), value) && drop(all, value);
}

}  // namespace

Ref get(Handle* handle) {
  Ref held = Ref::to(&handle->ob_base), owner = Ref::to(at(handle, Handle::kSegment));
  Segment* self = segment_of(owner.get());
  if (self == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, kNoSegment);
    return Ref();
  }
  Use use(self);
  const int retained = use ? is_retained() : -1;
  if (retained < 0) return Ref();
  Ref stored = Ref::to(at(handle, Handle::kStored)), value = latest(self, at(handle, Handle::kValue));
  if (!value) return Ref();
  const bool is_stored = stored.get() != Py_None;
  if (!is_stored) {
    const int there = PyDict_Contains(at(self, Segment::kMade), value.get());
    if (there < 0 || (there == 0 && !remake(self, value.get(), retained != 0))) return Ref();
  }
  const bool keeps = retained != 0 && at(self, Segment::kCalls) != Py_None;
  if (keeps) Py_SETREF(handle->members[Handle::kStored], Py_NewRef(Py_None));
  if (is_stored) return restored_aside(stored.get());
  Ref base = Ref::to(PyDict_GetItemWithError(at(self, Segment::kMade), value.get()));
  if (!base && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, value.get());
  if (!base || !drop_read(self, handle, value.get(), keeps)) return Ref();
  return view_aside(at(handle, Handle::kGeometry), base.get());
}

bool prepare(Handle* handle) {
  Ref held = Ref::to(&handle->ob_base), owner = Ref::to(at(handle, Handle::kSegment));
  Segment* self = segment_of(owner.get());
  if (self == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, kNoSegment);
    return false;
  }
  const Recursion recursion;
  if (!recursion) return false;
  Use use(self);
  Ref value = use ? latest(self, at(handle, Handle::kValue)) : Ref();
  if (!value) return false;
  if (at(handle, Handle::kStored) != Py_None) return true;
  const int there = PyDict_Contains(at(self, Segment::kMade), value.get());
  if (there != 0) return there > 0;
  const int retained = is_retained();
  if (retained < 0 || !remake(self, value.get(), retained != 0)) return false;
  if (at(handle, Handle::kStored) == Py_None) return true;
  const int only = asked_of(self, repeats->only_stored, value.get());  // only its stored form waits to be read
  return only >= 0 && (only == 0 || drop(at(self, Segment::kMade), value.get()));
}

void let_go(Handle* handle) {
  Ref owner = Ref::to(at(handle, Handle::kSegment));
  Segment* self = owner ? segment_of(owner.get()) : nullptr;
  if (self == nullptr) return;
  if (PyList_Append(at(self, Segment::kReleased), at(handle, Handle::kValue)) < 0)
    PyErr_WriteUnraisable(&handle->ob_base);
  Ref value = latest(self, at(handle, Handle::kValue)), one(PyLong_FromVoidPtr(handle));
  PyObject* seen = value ? PyDict_GetItemWithError(at(self, Segment::kSeen), value.get()) : nullptr;
  if (seen != nullptr && one) PySet_Discard(seen, one.get());  // another one may get its address
  PyErr_Clear();
  if (self->uses == 0) settle(self);
}

Segment* segment_of(PyObject* object) {
  if (object == nullptr || !PyObject_TypeCheck(object, segment_type)) return nullptr;
  auto* found = reinterpret_cast<Segment*>(object);
  // The collector clears the members of one in a circle in their order, and frees handles of it meanwhile.
  return found->members[Segment::kModel] != nullptr && found->members[Segment::kLock] != nullptr ? found : nullptr;
}

bool advance(Segment* self, Py_ssize_t done, PyObject* changes) {
  self->done = done;
  for (Py_ssize_t i = 0; changes != nullptr && i < PyTuple_GET_SIZE(changes); ++i) {
    PyObject* change = PyTuple_GET_ITEM(changes, i);
    if (!PyTuple_Check(change) || PyTuple_GET_SIZE(change) != 2) {
      PyErr_Format(PyExc_TypeError, "a change must be a value and what it becomes, got %R", change);
      return false;
    }
    PyObject *old = PyTuple_GET_ITEM(change, 0), *now = PyTuple_GET_ITEM(change, 1);
    if (PyDict_SetItem(at(self, Segment::kBecomes), old, now) < 0) return false;
    for (const Segment::Member which : {Segment::kHandles, Segment::kWaiting}) {
      Ref found = Ref::to(PyDict_GetItemWithError(at(self, which), old));
      if (!found && PyErr_Occurred()) return false;
      if (found && (PyDict_SetItem(at(self, which), now, found.get()) < 0 || PyDict_DelItem(at(self, which), old) < 0))
        return false;
    }
  }
  return true;
}

Ref handle_of(PyObject* segment, PyObject* value, PyObject* tensor, PyObject* later, bool shares) {
  Segment* owner = segment_of(segment);
  if (owner == nullptr) {
    PyErr_Format(PyExc_TypeError, "segment must be a Segment, got %R", segment);
    return Ref();
  }
  Ref geometry = geometry_of(tensor), version = geometry ? version_of(tensor) : Ref();
  Ref made(version ? handle_type->tp_alloc(handle_type, 0) : nullptr);
  if (!made) return Ref();
  auto* self = reinterpret_cast<Handle*>(made.get());
  self->members[Handle::kSegment] = Py_NewRef(segment), self->members[Handle::kValue] = Py_NewRef(value);
  self->members[Handle::kGeometry] = geometry.release(), self->members[Handle::kVersion] = version.release();
  self->members[Handle::kLater] = Py_NewRef(later), self->members[Handle::kStored] = Py_NewRef(Py_None);
  self->shares = static_cast<char>(shares);
  PyObject* handles = at(owner, Segment::kHandles);
  PyObject* before = PyDict_GetItemWithError(handles, value);
  if (before == nullptr && PyErr_Occurred()) return Ref();
  Ref count(PyLong_FromLong(before == nullptr ? 1 : PyLong_AsLong(before) + 1));
  if (!count || PyDict_SetItem(handles, value, count.get()) < 0) return Ref();
  self->held = 1;
  if (later == Py_None) untrack(made.get());  // all else does not lead back to it
  if (later == Py_None && !shares) return made;
  Ref weak(PyWeakref_NewRef(made.get(), nullptr));
  Ref waiting = Ref::to(PyDict_GetItemWithError(at(owner, Segment::kWaiting), value));
  if (!waiting && !PyErr_Occurred()) {
    waiting = Ref(PyList_New(0));
    if (!waiting || PyDict_SetItem(at(owner, Segment::kWaiting), value, waiting.get()) < 0) return Ref();
  }
  return weak && waiting && PyList_Append(waiting.get(), weak.get()) == 0 ? std::move(made) : Ref();
}

}  // namespace actcore
