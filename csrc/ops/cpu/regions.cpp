// Regions of compiled code: where their noise comes from, and which of them ran. No Python runs for them.
#include <algorithm>
#include <atomic>

#include "codec/philox.h"
#include "ops/outputs.h"

namespace actcore::ops {
namespace {

using Listener = void (*)(int64_t region);

// What a thread's compiled regions belong to.
struct Forward {
  uint64_t key = 0;  // 0 outside of all forwards
  Listener listener = nullptr;
  uint64_t regions = 0;  // that ran in it so far
  Ints notes = {};
};

thread_local Forward forward;
std::atomic<uint64_t> regions_outside = 0;  // in any thread

int64_t enter_region(int64_t region, const Ints& sizes) {
  if (forward.key == 0) return static_cast<int64_t>(mixed(regions_outside++));
  if (forward.listener != nullptr) forward.listener(region);
  forward.notes.push_back(region);
  forward.notes.push_back(static_cast<int64_t>(sizes.size()));
  forward.notes.insert(forward.notes.end(), sizes.begin(), sizes.end());
  return static_cast<int64_t>(mixed(forward.key ^ mixed(forward.regions++)));
}

Tensor region_stream(const Tensor& like, int64_t region, const Ints& sizes) {
  Tensor stream = make_empty(like, {1}, ScalarType::Long);
  *static_cast<int64_t*>(stream.mutable_data_ptr()) = enter_region(region, sizes);
  return stream;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CompositeExplicitAutograd, m) {
  using namespace actcore::ops;
  m.impl("enter_region", TORCH_BOX(&enter_region));
}

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) { m.impl("region_stream", TORCH_BOX(&actcore::ops::region_stream)); }

// From now on, compiled regions that run in this thread draw their streams from `key`, 0 outside of all forwards, and are
// noted; `listener`, if it is not null, is called with the number of each. Writes the notes since the last call to
// `notes` and returns how many there are: for each region, in the order of their runs, its number, how many sizes follow,
// and those. Where there are more than `room`, nothing is done. No operator, so that no dispatch mode of a user sees it.
extern "C" __attribute__((visibility("default"))) int64_t actcore_begin_regions(uint64_t key,
                                                                                actcore::ops::Listener listener,
                                                                                int64_t* notes, int64_t room) {
  auto& forward = actcore::ops::forward;
  const auto count = static_cast<int64_t>(forward.notes.size());
  if (count > room) return count;
  std::copy(forward.notes.begin(), forward.notes.end(), notes);
  forward.notes.clear();
  forward.key = key, forward.listener = listener, forward.regions = 0;
  return count;
}
