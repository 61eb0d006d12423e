// ReLU and dropout with a mask of one bit an element on the CPU: one pass over memory each way.
#pragma once

#include "codec/masked.h"
#include "cpu/bits.h"
#include "cpu/noise.h"
#include "cpu/simd.h"

namespace actcore::ACTCORE_ISA {

template <class E>
ACTCORE_FN void relu_tile(const typename Pattern<E>::Word* x, int64_t count, typename Pattern<E>::Word* out,
                          uint8_t* bits) {
  using Word = typename Pattern<E>::Word;
  for (int64_t j = 0; j < count; ++j) {
    const Word word = x[j];
    out[j] = is_negative<E>(word) ? Word{0} : word;
    bits[j] = lets_gradient_through<E>(word);
  }
}

template <class E>
void relu_mask(const ReluMask& args, int64_t begin, int64_t end) {
  using Word = typename Pattern<E>::Word;
  const Word* x = static_cast<const Word*>(args.input);
  Word* out = static_cast<Word*>(args.output);
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    if (count == kTile) {  // a constant count lets the compiler unroll
      relu_tile<E>(x + i, kTile, out + i, tile);
    } else {
      relu_tile<E>(x + i, count, out + i, tile);
    }
    pack_tile<1>(tile, count, args.mask + packed_bytes(i, 1));
  }
}

// value * scale where a byte of `bits` is not 0, and 0 elsewhere, NaN and infinity included.
template <class E, class T = compute_t<E>>
ACTCORE_FN void scale_tile(const E* x, int64_t count, const uint8_t* bits, T scale, E* out) {
  const Vec<T> factor = broadcast(scale);
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    const Vec<T> kept = __builtin_convertvector(load_codes(bits + j), Vec<T>);
    store(out + j, kept != T(0) ? load(x + j) * factor : Vec<T>{});
  }
  for (int64_t j = whole; j < count; ++j) actcore::store(out + j, bits[j] != 0 ? actcore::load(x[j]) * scale : T(0));
}

template <class E>
void mask_backward(const MaskBackward& args, int64_t begin, int64_t end) {
  const E* x = static_cast<const E*>(args.gradient);
  E* out = static_cast<E*>(args.output);
  const auto scale = static_cast<compute_t<E>>(args.scale);
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    unpack_tile<1>(args.mask + packed_bytes(i, 1), count, tile);
    scale_tile(x + i, count, tile, scale, out + i);
  }
}

template <class E>
void dropout_mask(const DropoutMask& args, int64_t begin, int64_t end) {
  const E* x = static_cast<const E*>(args.input);
  E* out = static_cast<E*>(args.output);
  const auto scale = static_cast<compute_t<E>>(args.scale);
  const uint64_t seed = args.seed + (args.draw != nullptr ? static_cast<uint64_t>(*args.draw) : 0);
  alignas(64) uint16_t noise[kTile];
  alignas(64) uint8_t tile[kTile];
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    fill_noise_halves(seed, args.stream, i, noise);
    for (int64_t j = 0; j < kTile; ++j) tile[j] = noise[j] >= args.threshold;
    pack_tile<1>(tile, count, args.mask + packed_bytes(i, 1));
    scale_tile(x + i, count, tile, scale, out + i);
  }
}

}  // namespace actcore::ACTCORE_ISA
