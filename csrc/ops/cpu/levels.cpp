// Stochastic rounding to levels on the CPU.
#include "ops/levels.h"

#include <cmath>

#include "cpu/fused.h"
#include "ops/cpu/share.h"

namespace actcore::ops {
namespace {

// Not on other devices, where it would wait for the kernels before.
void require_levels(const LevelCodes& args) {
  bool sound = true;
  const auto check = [&](const auto* levels) {
    for (int i = 0; i < args.level_count; ++i) {
      sound &= std::isfinite(levels[i]) && levels[i] >= levels[i > 0 ? i - 1 : 0];
    }
  };
  if (args.type == ElementType::kFloat64) {
    check(static_cast<const double*>(args.levels));
  } else {
    check(static_cast<const float*>(args.levels));
  }
  require(sound, "level_codes", "levels must ascend and be finite; sort them");
}

Tensor level_codes(const Tensor& derivative, const Tensor& input, const Tensor& levels, int64_t bits, int64_t seed,
                   int64_t stream, std::optional<Tensor> draw, std::string guard) {
  const auto call = level_codes_call(derivative, input, levels, bits, seed, stream, draw, guard);
  require_levels(call.args);
  const auto& kernels = cpu::fused_kernels();
  // Whole stretches, so that no byte of the guard belongs to two threads.
  share(call.args.numel, kStretch, kGrain,
        [&](int64_t begin, int64_t end) { kernels.level_codes(call.args, begin, end); });
  return call.codes;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) { m.impl("level_codes", TORCH_BOX(&actcore::ops::level_codes)); }
