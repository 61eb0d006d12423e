// The noise of a thread's row of elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "codec/philox.h"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

// The noise of a row's elements, one byte each.
struct RowNoise {
  uint32_t word[kRow / 4];

  __device__ int operator[](int i) const { return static_cast<int>((word[i / 4] >> (8 * (i % 4))) & 0xFFu); }
};

// `position`, that of the row's first element, is a multiple of 16.
__device__ inline RowNoise aligned_noise(const NoiseKey& key, int64_t position) {
  const NoiseKey read = read_key(key);
  constexpr int kBlocks = kRow / kNoiseBlock;
  const auto blocks = philox_blocks<kBlocks>(read.seed, read.stream, static_cast<uint64_t>(position) / kNoiseBlock);
  RowNoise noise;
#pragma unroll
  for (int w = 0; w < 4 * kBlocks; ++w) noise.word[w] = blocks.block[w / 4].word[w % 4];
  return noise;
}

// `position` is any: the row begins inside a block, and takes the bytes of one more.
__device__ inline RowNoise noise_at(const NoiseKey& key, int64_t position) {
  const NoiseKey read = read_key(key);
  constexpr int kBlocks = kRow / kNoiseBlock + 1;
  const auto blocks = philox_blocks<kBlocks>(read.seed, read.stream, static_cast<uint64_t>(position) / kNoiseBlock);
  uint32_t word[4 * kBlocks];
#pragma unroll
  for (int w = 0; w < 4 * kBlocks; ++w) word[w] = blocks.block[w / 4].word[w % 4];
  // Shifted by 8, 4 and 0 to 3 bytes, so that every index is known and the words stay in registers.
  const int skip = static_cast<int>(position % kNoiseBlock);
#pragma unroll
  for (int w = 0; w < kRow / 4 + 2; ++w) word[w] = (skip & 8) != 0 ? word[w + 2] : word[w];
#pragma unroll
  for (int w = 0; w < kRow / 4 + 1; ++w) word[w] = (skip & 4) != 0 ? word[w + 1] : word[w];
  RowNoise noise;
#pragma unroll
  for (int w = 0; w < kRow / 4; ++w) {
    const uint64_t pair = word[w] | static_cast<uint64_t>(word[w + 1]) << 32;
    noise.word[w] = static_cast<uint32_t>(pair >> (8 * (skip & 3)));
  }
  return noise;
}

}  // namespace actcore::cuda
