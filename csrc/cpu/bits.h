// Packing codes into bits and back on the CPU, a tile at a time, and the masks of one bit an element.
#pragma once

#include <type_traits>

#include "codec/arguments.h"
#include "codec/bits.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

#if defined(__AVX512BW__)
// How the low `bits` bytes of eight words come end to end and part again. Bytes move within 128 bits only, so each pair of
// words is joined by bytes, and the pairs, whose length is even, by units of 16 bits.
template <int bits>
struct WordMoves {
  alignas(64) uint8_t join[64] = {}, part[64] = {};       // bytes within 128 bits; 0x80 is a zero
  alignas(64) uint16_t gather[32] = {}, spread[32] = {};  // units within all 512

  constexpr WordMoves() {
    for (int i = 0; i < 64; ++i) {
      const int j = i % 16;
      join[i] = static_cast<uint8_t>(j < 2 * bits ? j / bits * 8 + j % bits : 0x80);
      part[i] = static_cast<uint8_t>(j % 8 < bits ? j / 8 * bits + j % 8 : 0x80);
    }
    for (int i = 0; i < 4 * bits; ++i) gather[i] = static_cast<uint16_t>(i / bits * 8 + i % bits);
    for (int i = 0; i < 32; ++i) spread[i] = static_cast<uint16_t>(i % 8 < bits ? i / 8 * bits + i % 8 : 0);
  }
};
template <int bits>
inline constexpr WordMoves<bits> kWordMoves;
template <int bits>
constexpr __mmask64 kPackedBytes = ~uint64_t{0} >> (64 - 8 * bits);
#endif

// The packed words of kWords * 8 codes: the low `bits` bytes of each 64-bit word, end to end.
template <int bits>
ACTCORE_FN void store_words(uint8_t* packed, Words words) {
  if constexpr (bits == 1 || bits == 2 || bits == 4) {  // as wide as an integer type: one conversion
    using Narrow = std::conditional_t<bits == 1, uint8_t, std::conditional_t<bits == 2, uint16_t, uint32_t>>;
    store_vec(packed, __builtin_convertvector(words, typename VectorOf<Narrow, kWords>::type));
  } else if constexpr (bits == 8) {
    store_vec(packed, words);
  } else {
#if defined(__AVX512BW__)
    const __m512i pairs = _mm512_shuffle_epi8((__m512i)words, _mm512_load_si512(kWordMoves<bits>.join));
    const __m512i all = _mm512_permutexvar_epi16(_mm512_load_si512(kWordMoves<bits>.gather), pairs);
    _mm512_mask_storeu_epi8(packed, kPackedBytes<bits>, all);
#else
    for (int w = 0; w < kWords; ++w) {
      const uint64_t word = words[w];
      memcpy(packed + w * bits, &word, bits);
    }
#endif
  }
}

template <int bits>
ACTCORE_FN Words load_words(const uint8_t* packed) {
  if constexpr (bits == 1 || bits == 2 || bits == 4) {
    using Narrow = std::conditional_t<bits == 1, uint8_t, std::conditional_t<bits == 2, uint16_t, uint32_t>>;
    return __builtin_convertvector(load_vec<typename VectorOf<Narrow, kWords>::type>(packed), Words);
  } else if constexpr (bits == 8) {
    return load_vec<Words>(packed);
  } else {
#if defined(__AVX512BW__)
    const __m512i all = _mm512_maskz_loadu_epi8(kPackedBytes<bits>, packed);
    const __m512i pairs = _mm512_permutexvar_epi16(_mm512_load_si512(kWordMoves<bits>.spread), all);
    return (Words)_mm512_shuffle_epi8(pairs, _mm512_load_si512(kWordMoves<bits>.part));
#else
    uint64_t words[kWords] = {};
    for (int w = 0; w < kWords; ++w) memcpy(&words[w], packed + w * bits, bits);
    return load_vec<Words>(words);
#endif
  }
}

#if defined(__AVX512BW__)
// Packs 64 codes, whose neighbours are joined by multiplications.
template <int bits>
ACTCORE_FN void store_joined(uint8_t* packed, __m512i codes) {
  if constexpr (bits == 1) {
    const __mmask64 mask = _mm512_test_epi8_mask(codes, codes);
    memcpy(packed, &mask, sizeof mask);
  } else {
    const __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(1 | (1 << bits) << 8));
    if constexpr (bits == 4) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed), _mm512_cvtepi16_epi8(pairs));
    } else {
      static_assert(bits == 2);
      const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(1 | 16 << 16));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(packed), _mm512_cvtepi32_epi8(fours));
    }
  }
}
#endif

// `codes` holds one code a byte, each below 2^bits; writes exactly packed_bytes(count, bits) bytes.
template <int bits>
ACTCORE_FN void pack_tile(const uint8_t* codes, int64_t count, uint8_t* packed) {
  constexpr int step = 8 * kWords;
  int64_t i = 0;
  for (; i + step <= count; i += step) {
#if defined(__AVX512BW__)
    if constexpr (bits == 1 || bits == 2 || bits == 4) {
      store_joined<bits>(packed + i / 8 * bits, _mm512_loadu_si512(codes + i));
      continue;
    }
#endif
    store_words<bits>(packed + i / 8 * bits, squeeze8(load_vec<Words>(codes + i), bits));
  }
  for (; i < count; i += 8) {
    const int64_t left = count - i < 8 ? count - i : 8;
    uint64_t word = 0;
    memcpy(&word, codes + i, left);
    word = squeeze8(word, bits);
    memcpy(packed + i / 8 * bits, &word, packed_bytes(left, bits));
  }
}

template <int bits>
ACTCORE_FN void unpack_tile(const uint8_t* packed, int64_t count, uint8_t* codes) {
  constexpr int step = 8 * kWords;
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    store_vec(codes + i, spread8(load_words<bits>(packed + i / 8 * bits), bits));
  }
  for (; i < count; i += 8) {
    const int64_t left = count - i < 8 ? count - i : 8;
    uint64_t word = 0;
    memcpy(&word, packed + i / 8 * bits, packed_bytes(left, bits));
    word = spread8(word, bits);
    memcpy(codes + i, &word, left);
  }
}

ACTCORE_FN int64_t tile_at(int64_t i, int64_t end) { return end - i < kTile ? end - i : kTile; }

template <int bits>
bool pack_codes(const uint8_t* codes, uint8_t* packed, int64_t begin, int64_t end) {
  alignas(64) uint8_t tile[kTile];
  uint8_t excess = 0;
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    for (int64_t j = 0; j < count; ++j) {
      excess |= static_cast<uint8_t>(codes[i + j] >> bits);
      tile[j] = codes[i + j] & ((1 << bits) - 1);
    }
    pack_tile<bits>(tile, count, packed + packed_bytes(i, bits));
  }
  return excess == 0;
}

template <int bits>
void unpack_codes(const uint8_t* packed, uint8_t* codes, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kTile) {
    unpack_tile<bits>(packed + packed_bytes(i, bits), tile_at(i, end), codes + i);
  }
}

// Word is the unsigned integer as wide as an element. Returns whether every element was low or high.
template <class Word, bool boolean>
bool mask_two_values(const BitMaskCompress& args, int64_t begin, int64_t end) {
  const Word low = static_cast<Word>(args.low), high = static_cast<Word>(args.high);
  const Word* x = static_cast<const Word*>(args.input);
  alignas(64) uint8_t tile[kTile];
  Word strange = 0;
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    for (int64_t j = 0; j < count; ++j) {
      const Word value = boolean ? x[i + j] != 0 : x[i + j];
      tile[j] = value == high;
      strange |= static_cast<Word>((value != high) & (value != low));
    }
    pack_tile<1>(tile, count, args.mask + packed_bytes(i, 1));
  }
  return strange == 0;
}

template <class Word>
void unmask_two_values(const BitMaskDecompress& args, int64_t begin, int64_t end) {
  const Word low = static_cast<Word>(args.low), high = static_cast<Word>(args.high);
  Word* out = static_cast<Word*>(args.output);
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    unpack_tile<1>(args.mask + packed_bytes(i, 1), count, tile);
    for (int64_t j = 0; j < count; ++j) out[i + j] = tile[j] ? high : low;
  }
}

// Not `value > 0`: a NaN must come back as something that lets the gradient through, as in torch's threshold.
template <class E>
void mask_positive(const PositiveMask& args, int64_t begin, int64_t end) {
  const E* x = static_cast<const E*>(args.input);
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    for (int64_t j = 0; j < count; ++j) tile[j] = !(actcore::load(x[i + j]) <= 0);
    pack_tile<1>(tile, count, args.mask + packed_bytes(i, 1));
  }
}

}  // namespace actcore::ACTCORE_ISA
