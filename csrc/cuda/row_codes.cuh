// A thread's row of 32 elements to codes and back, for groups of floats whose values need no scaling: bit for bit what
// encode() and decode() of codec/group_affine.h give, in as few instructions as we found.
//
// Adding 2^23 to a float below it rounds it to an integer, to nearest, ties to even, and leaves that integer in its low
// bits; such a pattern less 2^23 is the integer as a float.
#pragma once

#include <cstdint>
#include <cstring>

#include "codec/group_affine.h"
#include "cuda/intrinsics.cuh"
#include "cuda/row_noise.cuh"
#include "cuda/warp_tile.cuh"

namespace actcore::cuda {

constexpr float kIntegers = 0x1p23f;
constexpr uint32_t kIntegersBits = 0x4B000000u;
constexpr int kIntegerBits = 23;

// A row's elements as the numbers that they are computed in, and back, finite ones; elements of 16 bits by twos.
template <class E>
struct Values {
  compute_t<E> value[kRow];

  Values() = default;

  __device__ explicit Values(const Row<E>& row) {
#pragma unroll
    for (int i = 0; i < kRow; i += 2) {
      if constexpr (sizeof(E) == 2) {
        const uint32_t pair = pair_of(row, i);
        value[i] = Pair<E>::first(pair);
        value[i + 1] = Pair<E>::second(pair);
      } else {
        value[i] = row[i];
        value[i + 1] = row[i + 1];
      }
    }
  }

  __device__ Row<E> row() const {
    Row<E> row;
#pragma unroll
    for (int i = 0; i < kRow; i += 2) {
      if constexpr (sizeof(E) == 2) {
        const uint32_t pair = Pair<E>::pack(value[i], value[i + 1]);
        memcpy(&row[i], &pair, sizeof pair);
      } else {
        row[i] = value[i];
        row[i + 1] = value[i + 1];
      }
    }
    return row;
  }

  __device__ static uint32_t pair_of(const Row<E>& row, int i) {
    uint32_t pair;
    memcpy(&pair, &row[i], sizeof pair);
    return pair;
  }
};

// A row of one element, copied: a NaN out of arithmetic has other bits here than on the CPU.
template <class E>
__device__ Row<E> repeated(E value) {
  if constexpr (sizeof(E) == 2) {
    // Not to be had before it is known to be wanted: nvcc would make every pair of the row beforehand.
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+h"(value.bits));
#endif
  }
  Row<E> row;
#pragma unroll
  for (int i = 0; i < kRow; ++i) row[i] = value;
  return row;
}

// Moves four fields of `bits` bits, one a byte, end to end.
template <int bits>
__device__ uint32_t squeeze4(uint32_t fields) {
  if constexpr (bits == 8) return fields;
  const uint32_t odd = choose_bytes(fields, 0, 0x4341);
  const uint32_t twos = odd * ((1u << bits) - (1u << 8)) + fields;
  return (twos >> 16) * ((1u << 2 * bits) - (1u << 16)) + twos;
}

// Sets `width` bits that begin with bit `at`, in words that start as zeros.
template <int bits>
__device__ void put_bits(PackedRow<bits>& codes, int at, int width, uint32_t value) {
  codes.word[at / 32] |= value << at % 32;
  if (at % 32 + width > 32) codes.word[at / 32 + 1] |= value >> (32 - at % 32);
}

// encode() of a row, with group.scale 1. Two sums of t and r share a word, since t + r < 2^16, and a code is the upper byte
// of its half. Without noise t is the code, and multiplied by 256 comes to lie there.
template <int bits, class E>
__device__ PackedRow<bits> encode_row(const Values<E>& row, float origin, float factor, const RowNoise& noise,
                                      bool stochastic) {
  const uint32_t unit = stochastic ? 1u : 1u << kNoiseBits;
  const uint32_t without =
      stochastic ? 0u - kIntegersBits : 0u;  // takes the pattern's 2^23 away; times 256 it has gone
  PackedRow<bits> codes = {};
  uint32_t twos_before = 0;
#pragma unroll
  for (int i = 0; i < kRow; i += 4) {
    uint32_t t[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) t[k] = bits_of((row.value[i + k] - origin) * factor + kIntegers);
    const uint32_t r = noise.word[i / 4];
    const uint32_t even = (t[2] * 0x10000u + t[0]) * unit + ((r & 0x00FF00FFu) | without);
    const uint32_t odd = (t[3] * 0x10000u + t[1]) * unit + choose_bytes(r, without, 0x7341);
    if constexpr (bits > 4) {
      put_bits(codes, i * bits, 4 * bits, squeeze4<bits>(choose_bytes(even, odd, 0x7351)));
    } else {
      const uint32_t twos = (odd & 0xFF00FF00u) * (1u << bits) + even;  // in bytes 1 and 3
      if (i % 8 == 4) {
        const uint32_t eight = squeeze4<2 * bits>(choose_bytes(twos_before, twos, 0x7531));
        put_bits(codes, (i - 4) * bits, 8 * bits, eight);
      }
      twos_before = twos;
    }
  }
  return codes;
}

// Where code `i` of a row lies for decode_row: `shift` bits above the lowest of 32 that begin with bit `begin`. At most
// 23 - bits, so that the code in its place is an integer that a float can hold.
template <int bits>
struct CodePlace {
  int begin, shift;

  __device__ constexpr explicit CodePlace(int i) : begin(i * bits / 32 * 32), shift(i * bits % 32) {
    if (shift + bits > kIntegerBits) begin += 16, shift -= 16;
  }
};

// The 24 bits that begin with bit `begin`, below the pattern's upper byte.
template <int bits>
__device__ uint32_t window(const PackedRow<bits>& codes, int begin) {
  const int word = begin / 32;
  if (begin % 32 == 0) return choose_bytes(codes.word[word], kIntegersBits, 0x7210);
  const uint32_t next = word + 1 < bits && 32 % bits != 0 ? choose_bytes(codes.word[word], codes.word[word + 1], 0x4432)
                                                          : codes.word[word] >> 16;
  return choose_bytes(next, kIntegersBits, 0x7210);
}

// decode() of a row, with group.unscale 1 and a step of 0, or of 2^-108 and more. A code stays where it is, which multiplies it
// by a power of two; step divided by that power has no fewer bits, and their product is code * step exactly. `top_is_high`:
// the top code comes out as the upper bound by itself.
template <int bits, bool top_is_high, class E>
__device__ void decode_row(Values<E>& row, const PackedRow<bits>& codes, float origin, float step, float high) {
  constexpr uint32_t levels = (1u << bits) - 1u;
#pragma unroll
  for (int i = 0; i < kRow; ++i) {
    const CodePlace<bits> place(i);
    const uint32_t field = window(codes, place.begin) & (0xFF000000u | levels << place.shift);
    const float code = float_of(field) - kIntegers;
    const float value =
        fused_multiply_add(code, step * float_of(static_cast<uint32_t>(127 - place.shift) << 23), origin);
    row.value[i] = !top_is_high && field == (kIntegersBits | levels << place.shift) ? high : value;
  }
}

}  // namespace actcore::cuda
