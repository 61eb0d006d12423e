// The group-affine codec on the CPU: a group is read twice, for its bounds and for its codes, the second time from
// cache, and its noise is made in registers.
#pragma once

#include "codec/arguments.h"
#include "cpu/bits.h"
#include "cpu/noise.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

template <class T>
struct Bounds {
  T low;
  T high;
  bool finite;
};

// The bounds of `count` > 0 elements. Adding a positive zero turns a negative one into it.
template <class E, class T = compute_t<E>>
ACTCORE_FN Bounds<T> find_bounds(const E* x, int64_t count) {
  const T first = actcore::load(x[0]);
  Vec<T> low = broadcast(first), high = low, poison = {};
  Vec<T> low2 = low, high2 = low, poison2 = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const Vec<T> a = load(x + i), b = load(x + i + kLanes);
    low = min(a, low), high = max(a, high), poison = multiply_add<T>(a, Vec<T>{}, poison);
    low2 = min(b, low2), high2 = max(b, high2), poison2 = multiply_add<T>(b, Vec<T>{}, poison2);
  }
  T lowest = fold<T, false>(min(low, low2)), highest = fold<T, true>(max(high, high2));
  // A finite value times zero is zero; what is left is NaN for infinities and NaN.
  T rest = first * T(0);
  for (; i < count; ++i) {
    const T value = actcore::load(x[i]);
    lowest = value < lowest ? value : lowest;
    highest = value > highest ? value : highest;
    rest += value * T(0);
  }
  const bool finite = !any_nan<T>(poison + poison2) && rest == T(0);
  return {lowest + T(0), highest + T(0), finite};
}

// What elements beyond two bounds are taken for, in the type of the elements.
template <class E, class T = compute_t<E>>
struct Clamp {
  explicit Clamp(const GroupAffineCompress& args) {
    E least, most;
    actcore::store(&least, static_cast<T>(args.least));
    actcore::store(&most, static_cast<T>(args.most));
    low = actcore::load(least), high = actcore::load(most);
  }
  T operator()(T value) const { return value < low ? low : value > high ? high : value; }
  T low;
  T high;
};

// The bounds of `count` > 0 elements as they are clamped, which infinities are, too.
template <class E, class T = compute_t<E>>
ACTCORE_FN Bounds<T> find_clamped_bounds(const E* x, int64_t count, const Clamp<E>& clamp) {
  Vec<T> low = broadcast(clamp.high), high = broadcast(clamp.low), poison = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec<T> value = load(x + i);
    low = min(value, low), high = max(value, high);  // the second operand where the value is NaN
    const Vec<T> inside = min(max(value, broadcast(clamp.low)), broadcast(clamp.high));
    poison = poison + (value == value ? inside * Vec<T>{} : value);
  }
  T lowest = fold<T, false>(low), highest = fold<T, true>(high), rest = T(0);
  for (; i < count; ++i) {
    const T value = actcore::load(x[i]);
    lowest = value < lowest ? value : lowest;
    highest = value > highest ? value : highest;
    rest += clamp(value) * T(0);
  }
  return {clamp(lowest) + T(0), clamp(highest) + T(0), !any_nan<T>(poison) && rest == T(0)};
}

template <class E, class T = compute_t<E>>
ACTCORE_FN void clamp_tile(const E* x, int64_t count, const Clamp<E>& clamp, E* out) {
  const Vec<T> low = broadcast(clamp.low), high = broadcast(clamp.high);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, min(max(load(x + i), low), high));
  for (int64_t i = whole; i < count; ++i) actcore::store(out + i, clamp(actcore::load(x[i])));
}

// Codes of `count` <= kTile elements, one per byte; those of a partial vector's padding are 0.
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
      actcore::store(bounds, static_cast<T>(NAN));
      actcore::store(bounds + 1, static_cast<T>(NAN));
      memset(packed, 0, packed_bytes(count, bits));
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
      if (tile == kTile) {  // a constant count lets the compiler unroll
        encode_tile(elements, kTile, group, factor, shift, noise.bytes(), codes);
        pack_tile<bits>(codes, kTile, packed + packed_bytes(t, bits));
      } else {
        encode_tile(elements, tile, group, factor, shift, noise.bytes(), codes);
        pack_tile<bits>(codes, tile, packed + packed_bytes(t, bits));
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

    const GroupScale<T> group = group_scale(actcore::load(bounds[0]), actcore::load(bounds[1]));
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
