// The streams of compiled regions on CUDA.
#include <array>

#include "ops/cuda/launch.h"
#include "ops/outputs.h"

namespace actcore::ops {
namespace {

// The operator of the library for the CPU, which knows the forward: this library cannot name its variables.
int64_t enter_region(int64_t region, const Ints& sizes) {
  std::array<StableIValue, 2> stack = {torch::stable::detail::from(region), torch::stable::detail::from(sizes)};
  ACTCORE_CHECK_TORCH(aoti_torch_call_dispatcher("actcore::enter_region", "", stack.data()));
  return torch::stable::detail::to<int64_t>(stack[0]);
}

Tensor region_stream(const Tensor& like, int64_t region, const Ints& sizes) {
  Tensor stream = make_empty(like, {1}, ScalarType::Long);
  auto* to = static_cast<int64_t*>(stream.mutable_data_ptr());
  const auto key = static_cast<uint64_t>(enter_region(region, sizes));
  launch_on(like, [&](cudaStream_t s) { return cuda::write_stream(to, key, s); });
  return stream;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) { m.impl("region_stream", TORCH_BOX(&actcore::ops::region_stream)); }
