// Regions of compiled code: where their noise comes from, and which of them ran. No Python runs for them.
#include <atomic>
#include <utility>

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

Ints begin_regions(int64_t key, int64_t listener) {
  Forward next = {static_cast<uint64_t>(key), reinterpret_cast<Listener>(listener)};
  return std::exchange(forward, std::move(next)).notes;
}

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
  m.impl("begin_regions", TORCH_BOX(&begin_regions));
  m.impl("enter_region", TORCH_BOX(&enter_region));
}

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) { m.impl("region_stream", TORCH_BOX(&actcore::ops::region_stream)); }
