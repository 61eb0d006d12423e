// What integrations' Tape does of an operator of a forward that is not recomputed: it runs it, and gives what it made the
// numbers that the plan has for it. Left to the tape's methods, in Python, is what is recomputed, draws, writes in place,
// has shapes that follow from values, lists or subclasses of tensors, or is another than expected.
#include "bindings/tape.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/types.h"

namespace py = pybind11;

namespace actcore {
namespace {

// What is known of an operator. The key of a map of them is the operator, which it keeps.
struct Kind {
  PyObject *traits, *name;
  bool view, plain;  // plain: it neither draws nor writes, and its results' shapes follow from its arguments'
};

// The classes and functions of Python that this knows.
struct Known {
  explicit Known(const py::dict& given) {
    const auto type = [&](const char* name) { return type_in(given.ptr(), name); };
    tensor = type("Tensor"), parameter = type("Parameter");
    planned = type("Planned"), traits = type("Traits");
    traits_of = object_in(given.ptr(), "traits_of"), here = object_in(given.ptr(), "here");
    strided = object_in(given.ptr(), "strided"), bytes = object_in(given.ptr(), "bytes");
    name = {planned, "name"}, shapes = {planned, "shapes"}, makes = {planned, "makes"};
    segment = {planned, "segment"}, inner = {planned, "inner"};
    traits_name = {traits, "name"}, view = {traits, "view"}, writes = {traits, "writes"};
    random = {traits, "random"}, dynamic = {traits, "dynamic"};
  }

  PyTypeObject *tensor, *parameter, *planned, *traits;
  PyObject *traits_of, *here, *strided, *bytes;
  Field name, shapes, makes, segment, inner;
  Field traits_name, view, writes, random, dynamic;
  std::unordered_map<PyObject*, Kind> kinds;
  PyObject* name_repeating = PyUnicode_InternFromString("repeating");
  PyObject* name_paused = PyUnicode_InternFromString("paused");
  PyObject* name_mismatch = PyUnicode_InternFromString("mismatch");
  PyObject* name_ops = PyUnicode_InternFromString("ops");
  PyObject* name_next = PyUnicode_InternFromString("next");
  PyObject* name_storages = PyUnicode_InternFromString("storages");
  PyObject* name_follow = PyUnicode_InternFromString("follow");
  PyObject* name_made = PyUnicode_InternFromString("made");
  PyObject* name_by_address = PyUnicode_InternFromString("by_address");
  PyObject* name_put = PyUnicode_InternFromString("put");
  PyObject* name_layout = PyUnicode_InternFromString("layout");
  PyObject* name_is_nested = PyUnicode_InternFromString("is_nested");
  PyObject* name_is_quantized = PyUnicode_InternFromString("is_quantized");
  PyObject* name_dtype = PyUnicode_InternFromString("dtype");
  PyObject* name_shape = PyUnicode_InternFromString("shape");
  PyObject* name_untyped_storage = PyUnicode_InternFromString("untyped_storage");
  PyObject* name_cdata = PyUnicode_InternFromString("_cdata");
};

std::unique_ptr<Known> known;

// What is known of an operator; null with an error.
const Kind* kind_of(PyObject* function) {
  const auto found = known->kinds.find(function);
  if (found != known->kinds.end()) return &found->second;
  Ref traits(PyObject_CallOneArg(known->traits_of, function));
  if (!traits) return nullptr;
  if (!Py_IS_TYPE(traits.get(), known->traits)) {
    PyErr_Format(PyExc_TypeError, "traits_of must return Traits, got %R", traits.get());
    return nullptr;
  }
  PyObject* writes = known->writes.of(traits.get());
  const bool plain = PyTuple_Check(writes) && PyTuple_GET_SIZE(writes) == 0 &&
                     known->random.of(traits.get()) == Py_False && known->dynamic.of(traits.get()) == Py_False;
  PyObject* name = known->traits_name.of(traits.get());
  const bool view = known->view.of(traits.get()) == Py_True;
  return &known->kinds.emplace(Py_NewRef(function), Kind{traits.release(), name, view, plain}).first->second;
}

bool is_tensor(PyObject* object) { return Py_IS_TYPE(object, known->tensor) || Py_IS_TYPE(object, known->parameter); }

// The address of the storage that a tensor is a view of and nothing else; null, without an error, for another tensor.
Ref plain_address_of(PyObject* tensor, Ref* storage = nullptr) {
  Ref own;
  if (has(tensor, known->name_layout, known->strided) && has(tensor, known->name_is_nested, Py_False) &&
      has(tensor, known->name_is_quantized, Py_False))
    own = Ref(PyObject_CallMethodNoArgs(tensor, known->name_untyped_storage));
  Ref address(own ? PyObject_GetAttr(own.get(), known->name_cdata) : nullptr);
  if (!address) go_on();
  if (storage != nullptr) *storage = std::move(own);
  return address;
}

// A result in memory of its own.
struct Made {
  Ref storage, address;
};

// Whether the address is that of an argument. -1: the argument is none that this knows.
int is_of(PyObject* given, PyObject* address) {
  if (is_tensor(given)) {
    Ref other = plain_address_of(given);
    return other ? PyObject_RichCompareBool(other.get(), address, Py_EQ) : -1;
  }
  if (PyList_Check(given) || PyTuple_Check(given)) {
    Ref first(PySequence_Size(given) > 0 ? PySequence_GetItem(given, 0) : nullptr);
    return first && !PyLong_Check(first.get()) && !PyFloat_Check(first.get()) ? -1 : 0;
  }
  if (given == Py_None || PyLong_Check(given) || PyFloat_Check(given) || PyUnicode_Check(given)) return 0;
  return PyObject_HasAttr(given, known->name_untyped_storage) ? -1 : 0;
}

// The same of all arguments of a call.
int is_given(PyObject* address, PyObject* args, PyObject* kwargs) {
  int found = 0;
  for (Py_ssize_t i = 0; found == 0 && i < PyTuple_GET_SIZE(args); ++i)
    found = is_of(PyTuple_GET_ITEM(args, i), address);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; found == 0 && PyDict_Next(kwargs, &at, &name, &value);) found = is_of(value, address);
  return found;
}

// Whether the results are those that are planned, with what of them is in memory of its own, in order; false where that
// is for others to find out.
bool expected(PyObject* planned, PyObject* const* results, Py_ssize_t count, PyObject* args, PyObject* kwargs,
              PyObject* values, std::vector<Made>* made) {
  PyObject* shapes = known->shapes.of(planned);
  Py_ssize_t place = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* result = results[i];
    if (!is_tensor(result)) {
      if (result == Py_None || PyLong_Check(result)) continue;
      return false;
    }
    Made one;
    one.address = plain_address_of(result, &one.storage);
    if (!one.address) return false;
    if (shapes != Py_None && !has(result, known->name_dtype, known->bytes)) {
      Ref shape(PyObject_GetAttr(result, known->name_shape));
      if (!shape || place >= PyTuple_GET_SIZE(shapes) ||
          PyObject_RichCompareBool(shape.get(), PyTuple_GET_ITEM(shapes, place), Py_EQ) != 1)
        return false;
      ++place;
    }
    int is_known = PyDict_Contains(values, one.address.get());
    for (const Made& other : *made)
      if (is_known == 0) is_known = PyObject_RichCompareBool(other.address.get(), one.address.get(), Py_EQ);
    if (is_known == 0) is_known = is_given(one.address.get(), args, kwargs);
    if (is_known < 0) return false;
    if (is_known == 0) made->push_back(std::move(one));
  }
  return shapes == Py_None || place == PyTuple_GET_SIZE(shapes) || made->empty();
}

// Gives what an operator made its numbers. 1: done, 0: that is for others to do, -1: an error.
int note(PyObject* tape, const Kind& kind, PyObject* planned, Py_ssize_t next, PyObject* args, PyObject* kwargs,
         PyObject* out) {
  PyObject* single[] = {out};
  const bool several = PyTuple_Check(out) || PyList_Check(out);
  PyObject* const* results = several ? PySequence_Fast_ITEMS(out) : single;
  Ref storages(PyObject_GetAttr(tape, known->name_storages));
  Ref values(storages ? PyObject_GetAttr(storages.get(), known->name_by_address) : nullptr);
  if (!values) return -1;
  if (!PyDict_Check(values.get())) return 0;
  std::vector<Made> made;
  const Py_ssize_t count = several ? PySequence_Fast_GET_SIZE(out) : 1;
  const bool found = expected(planned, results, count, args, kwargs, values.get(), &made);
  go_on();
  if (!found) return 0;
  if (made.empty()) return 1;
  PyObject* numbers = known->makes.of(planned);
  if (static_cast<Py_ssize_t>(made.size()) != PyTuple_GET_SIZE(numbers)) return 0;
  if (PyObject_RichCompareBool(known->name.of(planned), kind.name, Py_EQ) != 1) return PyErr_Occurred() ? -1 : 0;
  for (size_t i = 0; i < made.size(); ++i) {
    PyObject* put[] = {storages.get(), made[i].storage.get(), PyTuple_GET_ITEM(numbers, i)};
    if (!Ref(PyObject_VectorcallMethod(known->name_put, put, 3, nullptr))) return -1;
  }
  Ref after(PyLong_FromSsize_t(next + 1));
  return after && PyObject_SetAttr(tape, known->name_next, after.get()) == 0 ? 1 : -1;
}

// The operator that is expected, if it is not recomputed; null, without an error, where that is for others to tell.
PyObject* plainly_planned(PyObject* tape, Py_ssize_t* next, Ref* ops) {
  Ref mismatch(PyObject_GetAttr(tape, known->name_mismatch)), place(PyObject_GetAttr(tape, known->name_next));
  *ops = Ref(PyObject_GetAttr(tape, known->name_ops));
  if (!mismatch || !place || !*ops || PyObject_IsTrue(mismatch.get()) != 0 || !PyTuple_Check(ops->get()))
    return nullptr;
  *next = PyLong_AsSsize_t(place.get());
  if (*next < 0 || *next >= PyTuple_GET_SIZE(ops->get())) return nullptr;
  PyObject* planned = PyTuple_GET_ITEM(ops->get(), *next);
  if (!Py_IS_TYPE(planned, known->planned)) return nullptr;
  const bool again = PyLong_AsLong(known->segment.of(planned)) >= 0 || PyLong_AsLong(known->inner.of(planned)) >= 0;
  return again ? nullptr : planned;
}

PyObject* followed(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(given[2]) || !PyDict_Check(given[3]) || known == nullptr) {
    PyErr_SetString(PyExc_TypeError, "followed takes a tape, an operator, its args and kwargs, after bind_tape");
    return nullptr;
  }
  PyObject *tape = given[0], *function = given[1], *args = given[2], *kwargs = given[3];
  const Kind* kind = kind_of(function);
  if (kind == nullptr) return nullptr;
  if (kind->view || !has(known->here, known->name_repeating, Py_False) || !has(tape, known->name_paused, Py_False))
    return PyObject_Call(function, args, kwargs);
  Py_ssize_t next = 0;
  Ref ops;
  PyObject* planned = kind->plain ? plainly_planned(tape, &next, &ops) : nullptr;
  if (PyErr_Occurred()) return nullptr;
  if (planned == nullptr) {
    PyObject* all[] = {tape, function, kind->traits, args, kwargs};
    return PyObject_VectorcallMethod(known->name_follow, all, 5, nullptr);
  }
  Ref out(PyObject_Call(function, args, kwargs));
  if (!out) return nullptr;
  const int done = note(tape, *kind, planned, next, args, kwargs, out.get());
  if (done < 0) return nullptr;
  if (done == 0) {
    PyObject* all[] = {tape, kind->traits, args, kwargs, out.get()};
    if (!Ref(PyObject_VectorcallMethod(known->name_made, all, 5, nullptr))) return nullptr;
  }
  return out.release();
}

PyMethodDef following = {"followed", with_several<followed>(), METH_FASTCALL,
                         "Runs an operator of a forward that a Tape follows: (tape, operator, args, kwargs)."};

}  // namespace

void bind_tape(py::module_& module) {
  module.def(
      "bind_tape", [](const py::dict& given) { known = std::make_unique<Known>(given); }, py::arg("given"),
      "Names the classes and functions that followed knows.");
  module.add_object("followed", PyCFunction_New(&following, nullptr));
}

}  // namespace actcore
