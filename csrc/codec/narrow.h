// Integers in a known range, in the fewest bits.
//
// An integer is stored as its offset from the lower end of the range, in the `bits` bits of the longest offset: whole
// planes of one byte an element, lowest byte first, and a last plane of the 1 to 8 bits that remain, packed end to end
// (codec/bits.h). Together they take ceil(bits * numel / 8) bytes, as one stream of bits would, but each plane is
// written and read at the speed of bytes.
#pragma once

#include <cstdint>

#include "codec/bits.h"
#include "codec/macros.h"

namespace actcore {

// Planes of whole bytes; 0 bits have none and no last plane either.
ACTCORE_FN int narrow_planes(int bits) { return bits > 0 ? (bits - 1) / 8 : 0; }

// Bits of the last plane.
ACTCORE_FN int narrow_rest(int bits) { return bits - 8 * narrow_planes(bits); }

// Where plane `plane` begins, and in it the element `first`, a multiple of 8.
ACTCORE_FN int64_t narrow_offset(int64_t numel, int bits, int plane, int64_t first) {
  return plane * numel + (plane < narrow_planes(bits) ? first : packed_bytes(first, narrow_rest(bits)));
}

}  // namespace actcore
