// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the project's only
// source of noise. It is stateless: (seed, stream, position) decides every bit, on every device and in any order.
#pragma once

#include <cstdint>

#include "codec/macros.h"

namespace actcore {

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

// Elements that share one Philox block: each takes one of its 16 bytes, in element order, little-endian.
constexpr int kNoiseBlock = 16;

// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), after its increment: neighbours part entirely. As in
// actcore/noise.py.
ACTCORE_FN uint64_t mixed(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Names a sequence. Where `seed_at` or `stream_at` is not null it points to the number in the memory of the device that
// computes, so that a captured CUDA graph draws anew at each replay.
struct NoiseKey {
  uint64_t seed;
  uint64_t stream;
  const int64_t* seed_at;
  const int64_t* stream_at;
};

// The same key with its numbers in it; called where the pointers can be read.
ACTCORE_FN NoiseKey read_key(const NoiseKey& key) {
  return {key.seed_at == nullptr ? key.seed : static_cast<uint64_t>(*key.seed_at),
          key.stream_at == nullptr ? key.stream : static_cast<uint64_t>(*key.stream_at), nullptr, nullptr};
}

struct PhiloxBlock {
  uint32_t word[4];
};

// All 64 bits. Written as a product of 64-bit numbers, it leaves nvcc adding the product with the upper half, a zero.
ACTCORE_FN uint64_t wide_product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return static_cast<uint64_t>(a) * b;
#endif
}

template <int count>
struct PhiloxBlocks {
  PhiloxBlock block[count];
};

// The words of `count` blocks from `first` on, of the sequence named by (seed, stream); together, since they share the keys
// of the rounds.
template <int count>
ACTCORE_FN PhiloxBlocks<count> philox_blocks(uint64_t seed, uint64_t stream, uint64_t first) {
  PhiloxBlocks<count> x = {};
  for (int b = 0; b < count; ++b) {
    const uint64_t block = first + static_cast<uint64_t>(b);
    x.block[b] = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(stream >> 32)}};
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int b = 0; b < count; ++b) {
      uint32_t* word = x.block[b].word;
      const uint64_t p0 = wide_product(kPhiloxMultiplier0, word[0]);
      const uint64_t p1 = wide_product(kPhiloxMultiplier1, word[2]);
      word[0] = static_cast<uint32_t>(p1 >> 32) ^ word[1] ^ k0;
      word[1] = static_cast<uint32_t>(p1);
      word[2] = static_cast<uint32_t>(p0 >> 32) ^ word[3] ^ k1;
      word[3] = static_cast<uint32_t>(p0);
    }
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return x;
}

// The four words of block `block` of the sequence named by (seed, stream).
ACTCORE_FN PhiloxBlock philox(uint64_t seed, uint64_t stream, uint64_t block) {
  return philox_blocks<1>(seed, stream, block).block[0];
}

// The noise of element `lane` (0..15) of a block: an integer 0..255.
ACTCORE_FN int noise_byte(const PhiloxBlock& block, int lane) {
  return static_cast<int>((block.word[lane >> 2] >> (8 * (lane & 3))) & 0xFFu);
}

// The finer noise, of dropout and of levels: 16 bits an element, so that eight elements share a block.
constexpr int kHalfSteps = 65536;
constexpr int kHalfBlock = 8;

// The noise of element `lane` (0..7) of a block: an integer 0..65535.
ACTCORE_FN uint32_t noise_half(const PhiloxBlock& block, int lane) {
  return (block.word[lane >> 1] >> (16 * (lane & 1))) & 0xFFFFu;
}

}  // namespace actcore
