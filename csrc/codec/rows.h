// Rows of different widths: what one of them is stored in.
#pragma once

#include <cstdint>

#include "codec/arguments.h"
#include "codec/bits.h"
#include "codec/macros.h"

namespace actcore {

// The width of a row, or 0 where it is none of 1 to 8: such a row is not stored.
ACTCORE_FN int row_width(const RowWidths& widths, int64_t row) {
  int64_t width;
  switch (widths.integer_size) {
    case 1: width = static_cast<const uint8_t*>(widths.bits)[row]; break;
    case 4: width = static_cast<const int32_t*>(widths.bits)[row]; break;
    default: width = static_cast<const int64_t*>(widths.bits)[row]; break;
  }
  return width >= 1 && width <= kMaxBits ? static_cast<int>(width) : 0;
}

// A row alone, as the plain kernels take it. `offset` is that of its codes.
ACTCORE_FN GroupAffineCompress row_of(const GroupAffineCompress& args, const RowWidths& widths, int64_t row, int width,
                                      int64_t offset, int64_t element_size) {
  const int64_t first = row * widths.row_size;
  const int64_t groups = group_count(widths.row_size, args.group_size);
  GroupAffineCompress part = args;
  part.input = static_cast<const uint8_t*>(args.input) + first * element_size;
  part.numel = widths.row_size;
  part.bits = width;
  part.position = first;
  part.codes = args.codes + offset;
  part.bounds = static_cast<uint8_t*>(args.bounds) + 2 * row * groups * element_size;
  return part;
}

ACTCORE_FN GroupAffineDecompress row_of(const GroupAffineDecompress& args, const RowWidths& widths, int64_t row,
                                        int width, int64_t offset, int64_t element_size) {
  const int64_t groups = group_count(widths.row_size, args.group_size);
  GroupAffineDecompress part = args;
  part.codes = args.codes + offset;
  part.bounds = static_cast<const uint8_t*>(args.bounds) + 2 * row * groups * element_size;
  part.numel = widths.row_size;
  part.bits = width;
  part.output = static_cast<uint8_t*>(args.output) + row * widths.row_size * element_size;
  return part;
}

}  // namespace actcore
