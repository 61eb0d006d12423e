// Chooses the CPU kernels at run time, so that one binary serves every processor.
#include <cstdlib>
#include <stdexcept>

#include "cpu/kernels.h"

namespace actcore::cpu {

extern const Kernels portable_kernels;
#if defined(ACTCORE_X86)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> found;
#if defined(ACTCORE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512) found.push_back(&avx512_kernels);
  if (avx2) found.push_back(&avx2_kernels);
#endif
  found.push_back(&portable_kernels);
  return found;
}

namespace {

const Kernels& choose() {
  const std::vector<const Kernels*> found = runnable_kernels();
  const char* wanted = std::getenv("ACTCORE_CPU");
  if (wanted == nullptr || *wanted == '\0') return *found.front();
  std::string names;
  for (const Kernels* set : found) {
    if (std::string(wanted) == set->name) return *set;
    names += names.empty() ? set->name : std::string(", ") + set->name;
  }
  throw std::runtime_error("ACTCORE_CPU must name kernels that run on this processor (" + names + "), got '" + wanted +
                           "'; unset it to take the fastest");
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace actcore::cpu
