// What integrations' CallTracker keeps of a forward's calls, where other parts in C read it.
#pragma once
#include <pybind11/pybind11.h>

namespace actcore {

// The base class of CallTracker, whose attributes have these names in Python. Each is null until it is set.
struct Calls {
  enum Member { kCall, kForeign, kBorn, kCheckpoints, kWatcher, kOver, kNoted, kNote, kFollower, kMembers };
  PyObject ob_base;
  PyObject* members[kMembers];
};

constexpr const char* kCallsMembers[Calls::kMembers] = {"call", "foreign", "born", "checkpoints", "watcher",
                                                        "over", "noted",   "note", "follower"};

// Whether an object is a CallTracker.
bool is_calls(PyObject* object);

void bind_calls(pybind11::module_& module);

}  // namespace actcore
