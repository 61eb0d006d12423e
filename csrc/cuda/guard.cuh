// The guard on CUDA: a warp's tile is a stretch, and its threads agree on the byte.
#pragma once

#include <cstring>

#include "codec/guard.h"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

static_assert(kTile == kStretch);

// Whether a thread's row holds what the guard looks for. What follows the last element repeats it.
template <class E>
__device__ bool is_guarded(const Row<E>& row, Guard guard) {
  using Word = typename Pattern<E>::Word;
  bool found = false;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    Word word;
    memcpy(&word, &row[i], sizeof word);
    found |= actcore::is_guarded<E>(static_cast<Word>(word & static_cast<Word>(~Pattern<E>::sign)), guard);
  }
  return found;
}

// Called by whole warps, for the tile that begins with element `first`.
__device__ inline void store_guard(bool found, uint8_t* guards, int64_t first) {
  const bool any = __any_sync(0xFFFFFFFFu, found) != 0;
  if (lane_index() == 0) guards[first / kStretch] = any ? 1 : 0;
}

}  // namespace actcore::cuda
