// How the CPU operators use memory and torch's threads.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <exception>
#include <mutex>

#include "cpu/kernels.h"
#include "ops/checks.h"

namespace actcore::ops {

// Below this many elements a second thread costs more than it saves. A multiple of 8, so that no byte of packed
// codes belongs to two threads.
constexpr int64_t kGrain = 32768;

// Calls work(begin, end) on ranges whose inner borders are multiples of `unit`.
template <class Work>
void share(int64_t count, int64_t unit, int64_t grain, const Work& work) {
  const int64_t units = count / unit + (count % unit != 0);
  cpu::kernels();  // chosen here, where a wrong ACTCORE_CPU can say so: parallel_for hides what is thrown inside
  torch::stable::parallel_for(0, units, std::max<int64_t>(1, grain / unit),
                              [&](int64_t begin, int64_t end) { work(begin * unit, std::min(end * unit, count)); });
}

inline void share_elements(int64_t numel, const auto& work) { share(numel, 8, kGrain, work); }

inline void share_groups(int64_t groups, int64_t group_size, const auto& work) {
  share(groups, 1, kGrain / group_size, work);
}

// share, for work that may throw: an exception must not leave a thread.
template <class Work>
void share_and_rethrow(int64_t count, int64_t unit, int64_t grain, const Work& work) {
  std::exception_ptr first;
  std::mutex guard;
  share(count, unit, grain, [&](int64_t begin, int64_t end) {
    try {
      work(begin, end);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(guard);
      first = std::current_exception();
    }
  });
  if (first) std::rethrow_exception(first);
}

// A large new tensor is a fresh mapping. A page fault per 4 KiB of it costs as much as the arithmetic: with huge pages,
// where the system grants them, 4-bit compression of 256 MiB fell from 1.7 to 1.2 times a copy_ (2 threads, AMD EPYC).
inline void expect_all_written([[maybe_unused]] const Tensor& output, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(output.mutable_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

}  // namespace actcore::ops
