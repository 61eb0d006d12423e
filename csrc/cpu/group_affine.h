// The group-affine codec on the CPU: a group is read twice, for its bounds and for its codes, the second time from
// cache, and its noise is made in registers.
#pragma once

#include "codec/arguments.h"
#include "cpu/bits.h"
#include "cpu/bounds.h"
#include "cpu/noise.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// Codes of `count` <= kTile elements, one per byte; writes exactly `count` bytes.
template <class E, class T = compute_t<E>>
ACTCORE_FN void encode_tile(const E* x, int64_t count, const GroupScale<T>& group, T factor, int shift,
                            const uint8_t* noise, uint8_t* codes) {
  const Vec<T> scale = broadcast(group.scale), origin = broadcast(group.origin), factors = broadcast(factor);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec<T> offset = load(x + i) * scale - origin;
    store_codes(codes + i, (round_to_int(offset * factors) + load_codes(noise + i)) >> shift);
  }
  for (int64_t i = whole; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(encode(actcore::load(x[i]), group, factor, noise[i], shift));
  }
}

#if defined(__AVX512BW__)
// Two vectors of elements, and their positions, which are below 2^16, joined in the order of the elements.
template <class E>
struct Pair {
  Vec<float> first, second;
  explicit Pair(const E* x) : first(load(x)), second(load(x + kLanes)) {}
  static __m512i joined(__m512i first, __m512i second) {  // 128 bits of either alternate
    const __m512i halves = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(halves, _mm512_packus_epi32(first, second));
  }
};
template <>
struct Pair<BFloat16> {  // the two halves of each 128 bits, which come together again by themselves
  Vec<float> first, second;
  explicit Pair(const BFloat16* x) {
    const __m512i bits = _mm512_loadu_si512(x), zero = _mm512_setzero_si512();
    first = (Vec<float>)_mm512_unpacklo_epi16(zero, bits), second = (Vec<float>)_mm512_unpackhi_epi16(zero, bits);
  }
  static __m512i joined(__m512i first, __m512i second) { return _mm512_packus_epi32(first, second); }
};

template <bool scaled, class E>
ACTCORE_FN void encode_pairs(const E* x, int64_t count, const GroupScale<float>& group, float factor, int shift,
                             const uint8_t* noise, uint8_t* codes) {
  const Vec<float> scale = broadcast(group.scale), origin = broadcast(group.origin), factors = broadcast(factor);
  const __m128i shifts = _mm_cvtsi32_si128(shift);
  const auto position = [&](Vec<float> value) {
    return (__m512i)round_to_int(((scaled ? value * scale : value) - origin) * factors);
  };
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    const Pair<E> pair(x + i);
    const __m512i at = Pair<E>::joined(position(pair.first), position(pair.second));
    const __m512i drawn = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(noise + i)));
    const __m512i code = _mm512_srl_epi16(_mm512_add_epi16(at, drawn), shifts);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm512_cvtepi16_epi8(code));
  }
}

// As encode_tile above, 32 elements at a time.
template <class E>
  requires(!std::is_same_v<E, double>)
ACTCORE_FN void encode_tile(const E* x, int64_t count, const GroupScale<float>& group, float factor, int shift,
                            const uint8_t* noise, uint8_t* codes) {
  const int64_t whole = count / (2 * kLanes) * (2 * kLanes);
  if (group.scale == 1.0f) {
    encode_pairs<false>(x, whole, group, factor, shift, noise, codes);
  } else {
    encode_pairs<true>(x, whole, group, factor, shift, noise, codes);
  }
  for (int64_t i = whole; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(encode(actcore::load(x[i]), group, factor, noise[i], shift));
  }
}
#endif

// A group with elements that are not finite: see codec/group_affine.h.
template <class E, int bits>
void compress_broken(const GroupAffineCompress& args, int64_t first, int64_t count, TileNoise& noise, uint8_t* packed,
                     E* bounds) {
  using T = compute_t<E>;
  constexpr int top = top_code(bits, true);
  const E* x = static_cast<const E*>(args.input) + first;
  const Clamp<E> clamp(args);
  const auto value_of = [&](int64_t i) {
    const T value = actcore::load(x[i]);
    return args.clamps ? clamp(value) : value;
  };
  T low = static_cast<T>(INFINITY), high = -low;
  for (int64_t i = 0; i < count; ++i) {
    const T value = value_of(i);
    if (!is_finite(value)) continue;
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  low += T(0), high += T(0);
  const bool kept = keeps_finite(low, high, bits);
  actcore::store(bounds, kept && low < high ? high : static_cast<T>(NAN));
  actcore::store(bounds + 1, kept ? low : static_cast<T>(NAN));
  if (!kept) {
    memset(packed, 0, packed_bytes(count, bits));
    return;
  }
  const GroupScale<T> group = group_scale(low, high);
  const T factor = encode_factor(group, top, args.stochastic);
  const int shift = args.stochastic ? kNoiseBits : 0;
  alignas(64) uint8_t codes[kTile];
  for (int64_t t = 0; t < count; t += kTile) {
    const int64_t tile = count - t < kTile ? count - t : kTile;
    if (args.stochastic) noise.fill(args.position + first + t);
    for (int64_t i = 0; i < tile; ++i) {
      const T value = value_of(t + i);
      const int code = is_finite(value) ? encode(value, group, factor, noise.bytes()[i], shift) : top + 1;
      codes[i] = static_cast<uint8_t>(code);
    }
    pack_tile<bits>(codes, tile, packed + packed_bytes(t, bits));
  }
}

template <class E, int bits>
void compress_groups(const GroupAffineCompress& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  constexpr int levels = (1 << bits) - 1;
  const int shift = args.stochastic ? kNoiseBits : 0;
  TileNoise noise(args.key);
  alignas(64) uint8_t codes[kTile];
  alignas(64) E clamped[kTile];
  const Clamp<E> clamp(args);
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = g * args.group_size;
    const int64_t count = args.numel - first < args.group_size ? args.numel - first : args.group_size;
    const E* x = static_cast<const E*>(args.input) + first;
    uint8_t* packed = args.codes + packed_bytes(first, bits);
    E* bounds = static_cast<E*>(args.bounds) + 2 * g;

    const Bounds<T> found = args.clamps ? find_clamped_bounds(x, count, clamp) : find_bounds(x, count);
    if (!found.finite) {
      compress_broken<E, bits>(args, first, count, noise, packed, bounds);
      continue;
    }
    actcore::store(bounds, found.low);
    actcore::store(bounds + 1, found.high);
    const GroupScale<T> group = group_scale(found.low, found.high);
    const T factor = encode_factor(group, levels, args.stochastic);
    for (int64_t t = 0; t < count; t += kTile) {
      const int64_t tile = count - t < kTile ? count - t : kTile;
      if (args.stochastic) noise.fill(args.position + first + t);
      const E* elements = x + t;
      if (args.clamps) clamp_tile(x + t, tile, clamp, clamped), elements = clamped;
      uint8_t* const out = packed + packed_bytes(t, bits);
      uint8_t* const unpacked = bits == 8 ? out : codes;  // a code of 8 bits is packed as it is
      if (tile == kTile) {                                // a constant count lets the compiler unroll
        encode_tile(elements, kTile, group, factor, shift, noise.bytes(), unpacked);
        if constexpr (bits != 8) pack_tile<bits>(codes, kTile, out);
      } else {
        encode_tile(elements, tile, group, factor, shift, noise.bytes(), unpacked);
        if constexpr (bits != 8) pack_tile<bits>(codes, tile, out);
      }
    }
  }
}

template <class E, class T = compute_t<E>>
ACTCORE_FN void decode_tile(const uint8_t* codes, int64_t count, const GroupScale<T>& group, T step, int levels,
                            E* out) {
  const Vec<T> steps = broadcast(step), origin = broadcast(group.origin), unscale = broadcast(group.unscale);
  const Vec<T> high = broadcast(group.high), top = broadcast(static_cast<T>(levels));
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec<T> code = __builtin_convertvector(load_codes(codes + i), Vec<T>);
    const Vec<T> value = multiply_add<T>(code, steps, origin) * unscale;
    store(out + i, code == top ? high : value);
  }
  for (int64_t i = whole; i < count; ++i) actcore::store(out + i, decode(codes[i], group, step, levels));
}

template <class E, int bits>
void decompress_broken(const E* bounds, const uint8_t* packed, int64_t count, E* out) {
  using T = compute_t<E>;
  constexpr int top = top_code(bits, true);
  const GroupScale<T> group = broken_scale(actcore::load(bounds[0]), actcore::load(bounds[1]));
  const T step = decode_step(group, top);
  alignas(64) uint8_t codes[kTile];
  for (int64_t t = 0; t < count; t += kTile) {
    const int64_t tile = count - t < kTile ? count - t : kTile;
    unpack_tile<bits>(packed + packed_bytes(t, bits), tile, codes);
    for (int64_t i = 0; i < tile; ++i) {
      const T value = codes[i] > top ? static_cast<T>(NAN) : decode(codes[i], group, step, top);
      actcore::store(out + t + i, value);
    }
  }
}

template <class E, int bits>
void decompress_groups(const GroupAffineDecompress& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  constexpr int levels = (1 << bits) - 1;
  alignas(64) uint8_t codes[kTile];
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = g * args.group_size;
    const int64_t count = args.numel - first < args.group_size ? args.numel - first : args.group_size;
    const E* bounds = static_cast<const E*>(args.bounds) + 2 * g;
    const uint8_t* packed = args.codes + packed_bytes(first, bits);
    E* out = static_cast<E*>(args.output) + first;

    const T low = actcore::load(bounds[0]), high = actcore::load(bounds[1]);
    if (is_broken(low, high)) {
      decompress_broken<E, bits>(bounds, packed, count, out);
      continue;
    }
    const GroupScale<T> group = group_scale(low, high);
    const T step = decode_step(group, levels);
    for (int64_t t = 0; t < count; t += kTile) {
      const int64_t tile = count - t < kTile ? count - t : kTile;
      if (tile == kTile) {
        unpack_tile<bits>(packed + packed_bytes(t, bits), kTile, codes);
        decode_tile(codes, kTile, group, step, levels, out + t);
      } else {
        unpack_tile<bits>(packed + packed_bytes(t, bits), tile, codes);
        decode_tile(codes, tile, group, step, levels, out + t);
      }
    }
  }
}

}  // namespace actcore::ACTCORE_ISA
