// A block's threads as fibers: each runs until it waits for others or ends. A launch fails, and failure() says why, where
// threads wait for each other in vain, where one accesses memory that is not aligned as its type must be, and where it
// leaves an array or shifts by more than there are bits. A GPU forgives none of these, and mostly says nothing.
//
// The order in which a block's threads run changes from block to block and at each wait, so that one which reads what
// another has not yet written, or writes what another has still to read, is found by a wrong result.
#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {
namespace {

constexpr size_t kStack = 128 * 1024;
constexpr unsigned kEveryLane = 0xFFFFFFFFu;

struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool begun = false;
  bool ended = true;
  Meeting waits_at = Meeting::kNone;
  int exchanges = 0;
  ucontext_t start;
  jmp_buf place;
};

// What the threads of a warp show each other. A thread may come to its next exchange while others still read, but not
// to the one after that.
using Shown = unsigned char[2][kWarp][kLargest];
struct Warp {
  alignas(kLargest) Shown shown;
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
const std::function<void()>* work;
size_t current;
jmp_buf scheduler;
std::string why;

void fail(const std::string& reason) {
  if (!why.empty()) return;
  why = reason + " (block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(threadIdx.x) + ")";
}

void suspend() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

// A fiber never returns: when its thread has ended it waits to be the thread of another block.
void live() {
  for (;;) {
    (*work)();
    fibers[current].ended = true;
    suspend();
  }
}

void resume(size_t thread) {
  Fiber& fiber = fibers[thread];
  current = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  if (_setjmp(scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStack;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, live, 0);
  setcontext(&fiber.start);
}

// Lets threads [begin, end) go on if all of them wait at this meeting. Those that have ended count as come to one of the
// block, as on a GPU, not to one of their warp.
bool release(size_t begin, size_t end, Meeting meeting) {
  for (size_t i = begin; i < end; ++i) {
    if (fibers[i].ended ? meeting != Meeting::kBlock : fibers[i].waits_at != meeting) return false;
  }
  for (size_t i = begin; i < end; ++i) fibers[i].waits_at = Meeting::kNone;
  return true;
}

// Lets go on whom it may.
bool release_some(size_t threads) {
  bool any = false;
  for (size_t w = 0; w < threads; w += kWarp) {
    const Meeting meeting = fibers[w].waits_at;
    if (meeting != Meeting::kNone && meeting != Meeting::kBlock) any |= release(w, w + kWarp, meeting);
  }
  return any || release(0, threads, Meeting::kBlock);
}

void run_block(size_t threads, bool descending) {
  for (size_t i = 0; i < threads; ++i) {
    fibers[i].ended = false;
    fibers[i].waits_at = Meeting::kNone;
  }
  for (;; descending = !descending) {
    size_t ended = 0;
    for (size_t i = 0; i < threads; ++i) {
      const size_t thread = descending ? threads - 1 - i : i;
      if (!fibers[thread].ended && fibers[thread].waits_at == Meeting::kNone) resume(thread);
      if (!why.empty()) return;
      ended += fibers[thread].ended ? 1 : 0;
    }
    if (ended == threads) return;
    if (!release_some(threads)) return fail("threads wait at different places, or for one that has ended");
  }
}

}  // namespace

void meet(Meeting meeting, unsigned mask) {
  if (mask != kEveryLane) fail("only whole warps wait here");
  fibers[current].waits_at = meeting;
  suspend();
}

const unsigned char (*exchange(Meeting meeting, unsigned mask, const void* value, size_t size)) [kLargest] {
  auto& shown = warps[current / kWarp].shown[fibers[current].exchanges++ % 2];
  memcpy(shown[current % kWarp], value, size);
  meet(meeting, mask);
  return shown;
}

cudaError_t run(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  const size_t threads = blockDim.x;
  why.clear();
  if (threads == 0 || threads > 1024 || threads % kWarp != 0 || gridDim.x == 0 || gridDim.x > 0x7FFFFFFFu) {
    fail("a grid of " + std::to_string(gridDim.x) + " blocks of " + std::to_string(threads) + " threads");
    return cudaErrorInvalidValue;
  }
  if (fibers.size() < threads) fibers = std::vector<Fiber>(threads);
  warps.resize(fibers.size() / kWarp);
  work = &thread;
  for (unsigned b = 0; b < gridDim.x && why.empty(); ++b) {
    blockIdx.x = b;
    run_block(threads, b % 2 != 0);
  }
  if (why.empty()) return cudaSuccess;
  for (Fiber& fiber : fibers) fiber.begun = false;  // their stacks hold threads that never ended
  return cudaErrorLaunchFailure;
}

}  // namespace on_host

extern "C" const char* failure() { return on_host::why.c_str(); }

// ---- what the compiler's checks (-fsanitize=alignment,bounds,shift) call; linked without their own library ----

namespace {
struct Source {
  const char* file;
  uint32_t line, column;
};
void found(const char* what, const void* at) {
  const auto* source = static_cast<const Source*>(at);  // each report begins with it
  on_host::fail(std::string(what) + " at " + source->file + ":" + std::to_string(source->line));
}
}  // namespace

extern "C" {
void __ubsan_handle_type_mismatch_v1(void* at, void*) { found("an access that is not aligned", at); }
void __ubsan_handle_out_of_bounds(void* at, void*) { found("an index out of bounds", at); }
void __ubsan_handle_shift_out_of_bounds(void* at, void*, void*) { found("a shift out of bounds", at); }
}
