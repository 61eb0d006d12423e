// A thread's 32 codes in the packed form.
#pragma once

#include "codec/bits.h"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

template <int bits>
__device__ PackedRow<bits> packed_row(const int (&codes)[kRow]) {
  PackedRow<bits> packed = {};
#pragma unroll
  for (int i = 0; i < kRow; ++i) packed.put(i, static_cast<uint32_t>(codes[i]));
  return packed;
}

// As store_codes, where the width is only known at run time.
template <class E>
__device__ void store_row_codes(WarpTile<E>& tile, const int (&codes)[kRow], int bits, uint8_t* to, int count) {
  switch (bits) {
    case 1: return store_codes(tile, packed_row<1>(codes), to, count);
    case 2: return store_codes(tile, packed_row<2>(codes), to, count);
    case 3: return store_codes(tile, packed_row<3>(codes), to, count);
    case 4: return store_codes(tile, packed_row<4>(codes), to, count);
    case 5: return store_codes(tile, packed_row<5>(codes), to, count);
    case 6: return store_codes(tile, packed_row<6>(codes), to, count);
    case 7: return store_codes(tile, packed_row<7>(codes), to, count);
    default: return store_codes(tile, packed_row<8>(codes), to, count);
  }
}

}  // namespace actcore::cuda
