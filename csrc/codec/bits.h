// The one packing of the project: codes of `bits` bits lie end to end in a little-endian bit stream, so that eight
// codes fill exactly `bits` bytes. A mask is bits = 1.
#pragma once

#include <cstdint>

#include "codec/macros.h"

namespace actcore {

constexpr int kMaxBits = 8;

// Bytes that `numel` codes of `bits` bits take. Split in two so that bits * numel cannot overflow.
ACTCORE_FN int64_t packed_bytes(int64_t numel, int bits) { return numel / 8 * bits + (numel % 8 * bits + 7) / 8; }

// Groups that cover `numel` elements, without an overflow near 2^63.
ACTCORE_FN int64_t group_count(int64_t numel, int64_t group_size) {
  return numel / group_size + (numel % group_size != 0);
}

// The two functions below move eight codes between "one per byte" and "end to end in the low 8 * bits bits", in
// three steps that halve or double the width of the fields. A Word is a uint64_t or a SIMD vector of them.

// Codes must be below 2^bits; see clear_excess.
template <class Word>
ACTCORE_FN Word squeeze8(Word codes, int bits) {
  Word x = codes;
  x = (x & 0x00FF00FF00FF00FFull) | ((x & 0xFF00FF00FF00FF00ull) >> (8 - bits));
  x = (x & 0x0000FFFF0000FFFFull) | ((x & 0xFFFF0000FFFF0000ull) >> (16 - 2 * bits));
  x = (x & 0x00000000FFFFFFFFull) | ((x & 0xFFFFFFFF00000000ull) >> (32 - 4 * bits));
  return x;
}

template <class Word>
ACTCORE_FN Word spread8(Word packed, int bits) {
  const uint64_t low4 = (1ull << (4 * bits)) - 1;
  const uint64_t low2 = ((1ull << (2 * bits)) - 1) * 0x0000000100000001ull;
  const uint64_t low1 = ((1ull << bits) - 1) * 0x0001000100010001ull;
  Word x = packed;
  x = (x & low4) | ((x & (low4 << (4 * bits))) << (32 - 4 * bits));
  x = (x & low2) | ((x & (low2 << (2 * bits))) << (16 - 2 * bits));
  x = (x & low1) | ((x & (low1 << bits)) << (8 - bits));
  return x;
}

// Drops what lies above the low `bits` bits of each byte.
template <class Word>
ACTCORE_FN Word clear_excess(Word codes, int bits) {
  return codes & (((1ull << bits) - 1) * 0x0101010101010101ull);
}

}  // namespace actcore
