// Small tables in shared memory: the boundaries and levels of few-bit derivatives, and where an element lies among them.
#pragma once

#include <cuda_runtime.h>

#include "codec/group_affine.h"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

// The first `count` entries from memory, and `fill` up to `size`. Called by whole blocks of `threads`.
template <int threads, class T>
__device__ void load_table(T* table, const void* from, int count, int size, T fill) {
  for (int i = static_cast<int>(threadIdx.x); i < size; i += threads) {
    table[i] = i < count ? static_cast<const T*>(from)[i] : fill;
  }
  __syncthreads();
}

// For each element of a row, how many boundaries are not above it; NaN is above all. The table has 2^bits - 1 entries,
// of which those from `count` on are infinity. A search without branches: each step asks all elements, so that their
// reads of the table do not wait for each other. With known = 0, the width is that given at run time.
template <int known, class T>
__device__ void find_intervals(const T (&x)[kRow], const T* boundaries, int count, int bits, int (&interval)[kRow]) {
  constexpr int kSize = static_cast<int>(sizeof(T));  // places are in bytes, which address the table at once
  const char* table = reinterpret_cast<const char*>(boundaries);
#pragma unroll
  for (int i = 0; i < kRow; ++i) interval[i] = 0;
#pragma unroll(known != 0 ? known : 1)
  for (int step = known != 0 ? known - 1 : bits - 1; step >= 0; --step) {
    const char* middle = table + (kSize << step) - kSize;
#pragma unroll
    for (int i = 0; i < kRow; ++i) {
      const T boundary = *reinterpret_cast<const T*>(middle + interval[i]);
      if (!(x[i] < boundary)) interval[i] += kSize << step;
    }
  }
#pragma unroll
  for (int i = 0; i < kRow; ++i) {  // infinity passes the fill
    const int found = interval[i] / kSize;
    interval[i] = found < count ? found : count;
  }
}

}  // namespace actcore::cuda
