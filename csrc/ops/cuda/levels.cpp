// Stochastic rounding to levels on CUDA.
#include "ops/levels.h"

#include "cuda/fused.h"
#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

Tensor level_codes(const Tensor& derivative, const Tensor& input, const Tensor& levels, int64_t bits, int64_t seed,
                   int64_t stream, std::optional<Tensor> draw, std::string guard) {
  const auto call = level_codes_call(derivative, input, levels, bits, seed, stream, draw, guard);
  launch_on(input, [&](cudaStream_t s) { return cuda::level_codes(call.args, s); });
  return call.codes;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) { m.impl("level_codes", TORCH_BOX(&actcore::ops::level_codes)); }
