// The float8 codec on the CPU: a group is read twice, for its bound and for its codes, the second time from cache.
#pragma once

#include "codec/arguments.h"
#include "codec/float8.h"
#include "cpu/noise.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

// A plain loop: compilers make vectors of an integer maximum by themselves.
template <class E>
ACTCORE_FN magnitude_t<E> largest_magnitude(const E* x, int64_t count) {
  magnitude_t<E> largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const magnitude_t<E> value = magnitude_of(x[i]);
    largest = value > largest ? value : largest;
  }
  return largest;
}

ACTCORE_FN Vec<float> to_single(Vec<float> value) { return value; }
ACTCORE_FN Vec<float> to_single(Vec<double> value) { return __builtin_convertvector(value, Vec<float>); }

template <class Format>
ACTCORE_FN Vec<int32_t> encode_float8(Vec<float> y, Vec<int32_t> noise, int shift) {
  const Vec<int32_t> bits = (Vec<int32_t>)y;
  const Vec<int32_t> magnitude = bits & 0x7FFFFFFF;
  const Vec<int32_t> smallest = broadcast<int32_t>(Format::smallest_exponent);
  Vec<int32_t> exponent = (magnitude >> kFloatMantissa) - kFloatBias;
  exponent = exponent > smallest ? exponent : smallest;
  const Vec<int32_t> power = (kFloatBias + Format::mantissa + shift - exponent) << kFloatMantissa;
  const Vec<int32_t> steps = round_to_int((Vec<float>)magnitude * (Vec<float>)power);
  const Vec<int32_t> code = (steps + noise) >> shift;
  return (((exponent - smallest) << Format::mantissa) + code) | ((bits >> 24) & 0x80);
}

template <class Format>
ACTCORE_FN Vec<float> decode_float8(Vec<int32_t> code) {
  const Vec<int32_t> magnitude = code & 0x7F, one = broadcast<int32_t>(1);
  Vec<int32_t> field = magnitude >> Format::mantissa;
  field = field > one ? field : one;
  const Vec<int32_t> significand = magnitude - ((field - 1) << Format::mantissa);
  const Vec<int32_t> power = (field + (kFloatBias - 1 + Format::smallest_exponent - Format::mantissa))
                             << kFloatMantissa;
  const Vec<int32_t> sign = (code & 0x80) << 24;
  return __builtin_convertvector(significand, Vec<float>) * (Vec<float>)(sign | power);
}

template <class Format, class E, class T = compute_t<E>>
ACTCORE_FN void encode_float8_tile(const E* x, int64_t count, const Float8Scale<T>& group, int shift,
                                   const uint8_t* noise, uint8_t* codes) {
  const Vec<T> scale = broadcast(group.scale), factor = broadcast(group.factor);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec<float> y = to_single(load(x + i) * scale * factor);
    store_codes(codes + i, encode_float8<Format>(y, load_codes(noise + i), shift));
  }
  for (int64_t i = whole; i < count; ++i) {
    const float y = static_cast<float>(actcore::load(x[i]) * group.scale * group.factor);
    codes[i] = static_cast<uint8_t>(float8_encode<Format>(y, noise[i], shift));
  }
}

template <class E, class Format>
void compress_float8(const Float8Compress& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  const int shift = args.stochastic ? kNoiseBits : 0;
  TileNoise noise(args.key);
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = g * args.group_size;
    const int64_t count = args.numel - first < args.group_size ? args.numel - first : args.group_size;
    const E* x = static_cast<const E*>(args.input) + first;
    E* bound = static_cast<E*>(args.bounds) + g;

    const magnitude_t<E> largest = largest_magnitude(x, count);
    if (largest >= Magnitude<E>::infinity) {
      actcore::store(bound, static_cast<T>(NAN));
      memset(args.codes + first, 0, count);
      continue;
    }
    *bound = from_magnitude<E>(largest);
    const Float8Scale<T> group = float8_scale<Format>(actcore::load(*bound));
    for (int64_t t = 0; t < count; t += kTile) {
      const int64_t tile = count - t < kTile ? count - t : kTile;
      if (args.stochastic) noise.fill(first + t);
      if (tile == kTile) {  // a constant count lets the compiler unroll
        encode_float8_tile<Format>(x + t, kTile, group, shift, noise.bytes(), args.codes + first + t);
      } else {
        encode_float8_tile<Format>(x + t, tile, group, shift, noise.bytes(), args.codes + first + t);
      }
    }
  }
}

template <class E, class Format>
void decompress_float8(const Float8Decompress& args, int64_t begin, int64_t end) {
  using T = compute_t<E>;
  for (int64_t g = begin; g < end; ++g) {
    const int64_t first = g * args.group_size;
    const int64_t count = args.numel - first < args.group_size ? args.numel - first : args.group_size;
    const E stored = static_cast<const E*>(args.bounds)[g];
    const uint8_t* codes = args.codes + first;
    E* out = static_cast<E*>(args.output) + first;
    if (magnitude_of(stored) >= Magnitude<E>::infinity) {  // copied: a NaN out of arithmetic has other bits elsewhere
      for (int64_t i = 0; i < count; ++i) out[i] = stored;
      continue;
    }
    const Float8Scale<T> group = float8_scale<Format>(actcore::load(stored));
    const Vec<T> step = broadcast(group.step), unscale = broadcast(group.unscale), bound = broadcast(group.bound);
    const Vec<T> top = broadcast(static_cast<T>(Format::largest));
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec<T> value = __builtin_convertvector(decode_float8<Format>(load_codes(codes + i)), Vec<T>);
      const Vec<T> ordinary = value * step * unscale;
      store(out + i, value >= top ? bound : (value <= -top ? -bound : ordinary));
    }
    for (int64_t i = whole; i < count; ++i) actcore::store(out + i, float8_decode<Format>(codes[i], group));
  }
}

}  // namespace actcore::ACTCORE_ISA
