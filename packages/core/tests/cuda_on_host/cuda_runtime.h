// Stands in for CUDA's header of this name where the kernels of csrc/cuda are compiled for the host: what they use of CUDA,
// and no more. A launch runs the grid here and now, block by block; block.cpp has a block's threads.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one after another, so what a block shares may be static.
#define __shared__ static

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned size) : x(size) {}
};

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };
using cudaStream_t = void*;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace on_host {

constexpr int kWarp = 32;
constexpr size_t kLargest = 16;  // bytes of what threads may exchange

// What threads wait for each other at. All of a warp, or of a block, must be at the same.
enum class Meeting { kNone, kWarp, kShuffle, kVote, kBlock };

// Suspends the thread until all others have come.
void meet(Meeting meeting, unsigned mask);
// Shows `value` to the warp, waits until all have shown theirs, and returns them.
const unsigned char (*exchange(Meeting meeting, unsigned mask, const void* value, size_t size))[kLargest];

cudaError_t run(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

template <class T>
T value_of(const unsigned char* bytes) {
  T value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= kLargest);
  const auto shown = exchange(Meeting::kShuffle, mask, &value, sizeof value);
  return source >= 0 && source < kWarp ? value_of<T>(shown[source]) : value;
}

inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

}  // namespace on_host

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> given(std::forward<Arguments>(arguments)...);
  return on_host::run(*config, [&] { std::apply(kernel, given); });
}

inline cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t) {
  memset(to, value, size);
  return cudaSuccess;
}

inline void __syncthreads() { on_host::meet(on_host::Meeting::kBlock, 0xFFFFFFFFu); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { on_host::meet(on_host::Meeting::kWarp, mask); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return on_host::shuffle(mask, value, source % on_host::kWarp);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return on_host::shuffle(mask, value, on_host::lane() ^ lanes);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes) {
  return on_host::shuffle(mask, value, on_host::lane() - static_cast<int>(lanes));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes) {
  return on_host::shuffle(mask, value, on_host::lane() + static_cast<int>(lanes));
}

inline unsigned __ballot_sync(unsigned mask, int holds) {
  const auto shown = on_host::exchange(on_host::Meeting::kVote, mask, &holds, sizeof holds);
  unsigned ballot = 0;
  for (int i = 0; i < on_host::kWarp; ++i) ballot |= (on_host::value_of<int>(shown[i]) != 0 ? 1u : 0u) << i;
  return ballot;
}
inline int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }
inline int __all_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) == 0xFFFFFFFFu; }

// One thread runs at a time, and is suspended only where it waits.
template <class T, class Change>
T on_host_atomic(T* at, const Change& change) {
  const T before = *at;
  *at = change(before);
  return before;
}
template <class T>
T atomicAdd(T* at, T value) {
  return on_host_atomic(at, [&](T before) { return before + value; });
}
template <class T>
T atomicMax(T* at, T value) {
  return on_host_atomic(at, [&](T before) { return before > value ? before : value; });
}
template <class T>
T atomicMin(T* at, T value) {
  return on_host_atomic(at, [&](T before) { return before < value ? before : value; });
}
template <class T>
T atomicOr(T* at, T value) {
  return on_host_atomic(at, [&](T before) { return before | value; });
}
