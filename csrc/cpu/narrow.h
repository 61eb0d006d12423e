// Integers in a known range on the CPU, a tile at a time.
#pragma once

#include "codec/arguments.h"
#include "codec/dispatch.h"
#include "codec/narrow.h"
#include "cpu/bits.h"

namespace actcore::ACTCORE_ISA {

// Word is the unsigned integer as wide as an element. Returns whether every element was in the range.
template <class Word>
bool compress_narrow(const NarrowCompress& args, int64_t begin, int64_t end) {
  const Word low = static_cast<Word>(args.low), span = static_cast<Word>(args.span);
  const Word* x = static_cast<const Word*>(args.input);
  const int planes = narrow_planes(args.bits), rest = narrow_rest(args.bits);
  const Word rest_mask = static_cast<Word>((1u << rest) - 1u);
  alignas(64) Word offsets[kTile];
  alignas(64) uint8_t codes[kTile];
  Word strange = 0;
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    for (int64_t j = 0; j < count; ++j) {
      const Word offset = static_cast<Word>(x[i + j] - low);
      offsets[j] = offset;
      strange |= static_cast<Word>(offset > span);
    }
    for (int plane = 0; plane < planes; ++plane) {
      uint8_t* to = args.packed + narrow_offset(args.numel, args.bits, plane, i);
      for (int64_t j = 0; j < count; ++j) to[j] = static_cast<uint8_t>(offsets[j] >> (8 * plane));
    }
    if (rest == 0) continue;
    for (int64_t j = 0; j < count; ++j) codes[j] = static_cast<uint8_t>((offsets[j] >> (8 * planes)) & rest_mask);
    uint8_t* to = args.packed + narrow_offset(args.numel, args.bits, planes, i);
    with_bits(rest, [&]<int bits>() { pack_tile<bits>(codes, count, to); });
  }
  return strange == 0;
}

// An offset beyond the span, which no compression made, gives the upper end of the range.
template <class Word>
void decompress_narrow(const NarrowDecompress& args, int64_t begin, int64_t end) {
  const Word low = static_cast<Word>(args.low), span = static_cast<Word>(args.span);
  Word* out = static_cast<Word*>(args.output);
  const int planes = narrow_planes(args.bits), rest = narrow_rest(args.bits);
  alignas(64) Word offsets[kTile] = {};
  alignas(64) uint8_t codes[kTile] = {};
  for (int64_t i = begin; i < end; i += kTile) {
    const int64_t count = tile_at(i, end);
    if (rest > 0) {
      const uint8_t* from = args.packed + narrow_offset(args.numel, args.bits, planes, i);
      with_bits(rest, [&]<int bits>() { unpack_tile<bits>(from, count, codes); });
    }
    for (int64_t j = 0; j < count; ++j) offsets[j] = static_cast<Word>(static_cast<Word>(codes[j]) << (8 * planes));
    for (int plane = 0; plane < planes; ++plane) {
      const uint8_t* from = args.packed + narrow_offset(args.numel, args.bits, plane, i);
      for (int64_t j = 0; j < count; ++j) {
        offsets[j] |= static_cast<Word>(static_cast<Word>(from[j]) << (8 * plane));
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      const Word offset = offsets[j] < span ? offsets[j] : span;
      out[i + j] = static_cast<Word>(low + offset);
    }
  }
}

}  // namespace actcore::ACTCORE_ISA
