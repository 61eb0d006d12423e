// Philox4x32-10 for many blocks at once: the bytes of codec/philox.h, faster.
#pragma once

#include <bit>

#include "codec/philox.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// Writes front[0], back[0], front[1], back[1], ...
ACTCORE_FN void store_interleaved(Words front, Words back, uint8_t* to) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi64((__m512i)front, low, (__m512i)back));
  _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi64((__m512i)front, high, (__m512i)back));
#else
  for (int i = 0; i < kWords; ++i) {
    const uint64_t pair[2] = {front[i], back[i]};
    memcpy(to + i * sizeof pair, pair, sizeof pair);
  }
#endif
}

// Writes the noise bytes of blocks first, first + 1, ... for a whole tile.
//
// Each 32-bit word of the state lives in the low half of a 64-bit lane, where the multiplier finds it; high halves
// hold leftovers that no later step reads.
//
// Two batches run side by side: a round is a chain of a multiplication and two exclusive ors, and one batch alone would
// wait for it.
ACTCORE_FN void fill_noise(uint64_t seed, uint64_t stream, uint64_t first, uint8_t* noise) {
  constexpr int kBatches = 2;
  Words lane;
  for (int i = 0; i < kWords; ++i) lane[i] = static_cast<uint64_t>(i);
  for (int done = 0; done < kTile / kNoiseBlock; done += kBatches * kWords) {
    Words x0[kBatches], x1[kBatches], x2[kBatches], x3[kBatches];
    for (int b = 0; b < kBatches; ++b) {
      x0[b] = lane + (first + static_cast<uint64_t>(done + b * kWords));
      x1[b] = x0[b] >> 32;
      x2[b] = Words{} + stream;
      x3[b] = Words{} + (stream >> 32);
    }
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 2
      for (int b = 0; b < kBatches; ++b) {
        const Words p0 = multiply_low_halves(x0[b], kPhiloxMultiplier0);
        const Words p1 = multiply_low_halves(x2[b], kPhiloxMultiplier1);
        x0[b] = (p1 >> 32) ^ x1[b] ^ static_cast<uint64_t>(k0);
        x1[b] = p1;
        x2[b] = (p0 >> 32) ^ x3[b] ^ static_cast<uint64_t>(k1);
        x3[b] = p0;
      }
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
#pragma GCC unroll 2
    for (int b = 0; b < kBatches; ++b) {
      const Words front = (x0[b] & 0xFFFFFFFFull) | (x1[b] << 32);
      const Words back = (x2[b] & 0xFFFFFFFFull) | (x3[b] << 32);
      store_interleaved(front, back, noise + (done + b * kWords) * kNoiseBlock);
    }
  }
}

// The 16-bit noise of the tile that begins with element `position`, a multiple of 8.
ACTCORE_FN void fill_noise_halves(uint64_t seed, uint64_t stream, int64_t position, uint16_t* noise) {
  static_assert(std::endian::native == std::endian::little, "noise bytes are read as 16-bit words");
  const auto block = static_cast<uint64_t>(position) / kHalfBlock;
  fill_noise(seed, stream, block, reinterpret_cast<uint8_t*>(noise));
  fill_noise(seed, stream, block + kTile / kNoiseBlock, reinterpret_cast<uint8_t*>(noise) + kTile);
}

// The noise of one tile of elements, which may begin anywhere in the sequence.
class TileNoise {
 public:
  explicit TileNoise(const NoiseKey& key) : key_(key) {}

  void fill(int64_t position) {
    const uint64_t block = static_cast<uint64_t>(position) / kNoiseBlock;
    start_ = static_cast<int>(position % kNoiseBlock);
    fill_noise(key_.seed, key_.stream, block, bytes_);
    // Only rows whose length is no multiple of 16 begin inside a block.
    if (start_ != 0) fill_noise(key_.seed, key_.stream, block + kTile / kNoiseBlock, bytes_ + kTile);
  }

  // Zeros before the first call of `fill`.
  const uint8_t* bytes() const { return bytes_ + start_; }

 private:
  NoiseKey key_;
  int start_ = 0;
  alignas(64) uint8_t bytes_[2 * kTile] = {};
};

}  // namespace actcore::ACTCORE_ISA
