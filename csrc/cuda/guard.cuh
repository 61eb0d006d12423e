// The guard on CUDA: a warp's tile is a stretch, and its threads agree on the byte.
#pragma once

#include <cstring>

#include "codec/guard.h"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

static_assert(kTile == kStretch);

// Called by whole warps, for the row of each thread in the tile that begins with element `first`. What follows the last
// element repeats it.
template <class E>
__device__ void store_guard(const Row<E>& row, Guard guard, uint8_t* guards, int64_t first) {
  if (guards == nullptr) return;
  using Word = typename Pattern<E>::Word;
  bool found = false;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    Word word;
    memcpy(&word, &row[i], sizeof word);
    found |= is_guarded<E>(static_cast<Word>(word & static_cast<Word>(~Pattern<E>::sign)), guard);
  }
  const bool any = __any_sync(0xFFFFFFFFu, found) != 0;
  if (lane_index() == 0) guards[first / kStretch] = any ? 1 : 0;
}

}  // namespace actcore::cuda
