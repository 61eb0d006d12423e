// A warp's packed codes where their width is only known at run time: like load_codes and store_codes of warp_tile.cuh,
// with a row as four words of eight codes, one a byte.
#pragma once

#include "codec/bits.h"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

constexpr int kCodeWords = kRow / 8;

struct RowCodes {
  uint64_t word[kCodeWords];

  __device__ void put(int i, int code) { word[i / 8] |= static_cast<uint64_t>(code) << (i % 8 * 8); }
  __device__ int get(int i) const { return static_cast<int>(word[i / 8] >> (i % 8 * 8) & 0xFFu); }
};

// Codes beyond the last element must be 0.
template <class E>
__device__ void store_row_codes(WarpTile<E>& tile, const RowCodes& codes, int bits, uint8_t* to, int count) {
  const int lane = lane_index();
  const int size = static_cast<int>(packed_bytes(count, bits));
  uint8_t* bytes = reinterpret_cast<uint8_t*>(tile.words);
  __syncwarp();
#pragma unroll
  for (int g = 0; g < kCodeWords; ++g) {
    const uint64_t packed = squeeze8(codes.word[g], bits);
    for (int b = 0; b < bits; ++b) bytes[(lane * kCodeWords + g) * bits + b] = static_cast<uint8_t>(packed >> (8 * b));
  }
  __syncwarp();
  const int words = is_aligned(to, 4) ? size / 4 : 0;
  for (int i = lane; i < words; i += kWarp) reinterpret_cast<uint32_t*>(to)[i] = tile.words[i];
  for (int i = 4 * words + lane; i < size; i += kWarp) to[i] = bytes[i];
}

template <class E>
__device__ RowCodes load_row_codes(WarpTile<E>& tile, int bits, const uint8_t* from, int count) {
  const int lane = lane_index();
  const int size = static_cast<int>(packed_bytes(count, bits));
  uint8_t* bytes = reinterpret_cast<uint8_t*>(tile.words);
  __syncwarp();
  const int words = is_aligned(from, 4) ? size / 4 : 0;
  for (int i = lane; i < words; i += kWarp) tile.words[i] = reinterpret_cast<const uint32_t*>(from)[i];
  for (int i = 4 * words + lane; i < size; i += kWarp) bytes[i] = from[i];
  __syncwarp();
  RowCodes codes = {};
#pragma unroll
  for (int g = 0; g < kCodeWords; ++g) {
    uint64_t packed = 0;
    for (int b = 0; b < bits; ++b) {
      packed |= static_cast<uint64_t>(bytes[(lane * kCodeWords + g) * bits + b]) << (8 * b);
    }
    codes.word[g] = spread8(packed, bits);
  }
  return codes;
}

}  // namespace actcore::cuda
