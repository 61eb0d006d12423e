// The fused kernels of the instruction set that csrc/cpu/dispatch.cpp chose.
#include <string_view>

#include "cpu/fused.h"
#include "cpu/kernels.h"

namespace actcore::cpu {

extern const FusedKernels portable_fused_kernels;
#if defined(ACTCORE_X86)
extern const FusedKernels avx2_fused_kernels;
extern const FusedKernels avx512_fused_kernels;
#endif

namespace {

const FusedKernels& choose() {
#if defined(ACTCORE_X86)
  const std::string_view name = kernels().name;
  if (name == avx512_fused_kernels.name) return avx512_fused_kernels;
  if (name == avx2_fused_kernels.name) return avx2_fused_kernels;
#else
  kernels();
#endif
  return portable_fused_kernels;
}

}  // namespace

const FusedKernels& fused_kernels() {
  static const FusedKernels& chosen = choose();
  return chosen;
}

}  // namespace actcore::cpu
