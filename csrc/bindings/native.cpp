// What Python asks of the native code that has no tensors in it: how it was built, which kernels run here, and solvers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/calls.h"
#include "bindings/follow.h"
#include "bindings/formulas.h"
#include "bindings/kernels.h"
#include "bindings/replay.h"
#include "bindings/replay_hooks.h"
#include "bindings/segments.h"
#include "bindings/solvers.h"
#include "bindings/tape.h"
#include "codec/philox.h"
#include "cpu/kernels.h"

namespace py = pybind11;

PYBIND11_MODULE(_native, m) {
  m.doc() = "How actcore's native code was built, and its solvers.";
  m.attr("torch_version") = ACTCORE_TORCH_VERSION;
  m.attr("compiler") = ACTCORE_COMPILER;
  m.attr("cuda_version") = ACTCORE_CUDA_VERSION;
  m.attr("cuda_architectures") = ACTCORE_CUDA_ARCHITECTURES;

  m.def(
      "cpu_kernels", [] { return std::string(actcore::cpu::kernels().name); },
      "The kernel set in use: the fastest that this processor runs, or the one that ACTCORE_CPU names.");
  m.def(
      "runnable_cpu_kernels",
      [] {
        std::vector<std::string> names;
        for (const auto* set : actcore::cpu::runnable_kernels()) names.emplace_back(set->name);
        return names;
      },
      "The kernel sets that this processor runs, the fastest first.");
  m.def(
      "philox",
      [](uint64_t seed, uint64_t stream, uint64_t block) {
        const actcore::PhiloxBlock words = actcore::philox(seed, stream, block);
        return py::make_tuple(words.word[0], words.word[1], words.word[2], words.word[3]);
      },
      py::arg("seed"), py::arg("stream"), py::arg("block"),
      "The four 32-bit words of one block of the noise sequence (seed, stream).");

  actcore::bind_bound(m);
  actcore::bind_calls(m);
  actcore::bind_formulas(m);
  actcore::bind_hooks(m);
  actcore::bind_kernels(m);
  actcore::bind_replay(m);
  actcore::bind_segments(m);
  actcore::bind_solvers(m);
  actcore::bind_follow(m);
  actcore::bind_tape(m);
}
