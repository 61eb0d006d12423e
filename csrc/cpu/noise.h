// Philox4x32-10 for many blocks at once: the bytes of codec/philox.h, faster.
#pragma once

#include "codec/philox.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// Writes the noise bytes of blocks first, first + 1, ... for a whole tile.
//
// Each 32-bit word of the state lives in the low half of a 64-bit lane, where the multiplier finds it; high halves
// hold leftovers that no later step reads.
ACTCORE_FN void fill_noise(uint64_t seed, uint64_t stream, uint64_t first, uint8_t* noise) {
  Words lane;
  for (int i = 0; i < kWords; ++i) lane[i] = static_cast<uint64_t>(i);
  for (int done = 0; done < kTile / kNoiseBlock; done += kWords) {
    const Words block = lane + (first + static_cast<uint64_t>(done));
    Words x0 = block, x1 = block >> 32, x2 = Words{} + stream, x3 = Words{} + (stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const Words p0 = multiply_low_halves(x0, kPhiloxMultiplier0);
      const Words p1 = multiply_low_halves(x2, kPhiloxMultiplier1);
      x0 = (p1 >> 32) ^ x1 ^ static_cast<uint64_t>(k0);
      x1 = p1;
      x2 = (p0 >> 32) ^ x3 ^ static_cast<uint64_t>(k1);
      x3 = p0;
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    const Words front = (x0 & 0xFFFFFFFFull) | (x1 << 32);
    const Words back = (x2 & 0xFFFFFFFFull) | (x3 << 32);
    uint64_t* out = reinterpret_cast<uint64_t*>(noise + done * kNoiseBlock);
#if defined(__AVX512F__)
    const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_store_si512(out, _mm512_permutex2var_epi64((__m512i)front, low, (__m512i)back));
    _mm512_store_si512(out + 8, _mm512_permutex2var_epi64((__m512i)front, high, (__m512i)back));
#else
    for (int i = 0; i < kWords; ++i) {
      out[2 * i] = front[i];
      out[2 * i + 1] = back[i];
    }
#endif
  }
}

}  // namespace actcore::ACTCORE_ISA
