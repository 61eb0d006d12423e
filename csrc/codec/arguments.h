// What a kernel is told, on every device: plain pointers, sizes and options, already checked by csrc/ops.
#pragma once

#include <cstdint>

#include "codec/philox.h"

namespace actcore {

enum class ElementType { kFloat32, kFloat64, kFloat16, kBFloat16 };

// The tensor's elements in memory order, `numel` of them, in groups of `group_size` (a multiple of 32).
struct GroupAffineCompress {
  const void* input;
  ElementType type;
  int64_t numel;
  int64_t group_size;
  int bits;
  bool stochastic;
  NoiseKey key;
  int64_t position;  // of the first element in the sequence of noise; 0 unless `input` is a part of a tensor
  uint8_t* codes;    // packed_bytes(numel, bits)
  void* bounds;      // (groups, 2) in the input's type: low, high; of a broken group as codec/group_affine.h says
  // Elements beyond these are stored as if they lay at them, if there are any.
  bool clamps = false;
  double least = 0;
  double most = 0;
};

struct GroupAffineDecompress {
  const uint8_t* codes;
  const void* bounds;
  ElementType type;
  int64_t numel;
  int64_t group_size;
  int bits;
  void* output;
};

// A mean that is taken from each element, and a factor by which the rest is multiplied. With channels last, element i
// is in row i / channels and at i % channels of it, and `inner` rows have those of one row of the tables. Otherwise
// `channels` is 0, and `inner` elements end to end have one entry, the next ones the next, and after the last the first.
struct ChannelTables {
  const void* mean;  // (entries) in the type that elements are computed in
  const void* factor;
  int64_t entries;
  int64_t channels;
  int64_t inner;
};

// Of which elements each of `count` statistics is. With channels last, a row of `channels` elements has as many columns,
// `inner` rows share the statistics, and each statistic is of `each` adjacent columns. Otherwise `channels` is 0, and
// `inner` elements end to end have one statistic, the next ones the next, and after the last the first.
struct StandardizedShape {
  int64_t numel;
  int64_t count;
  int64_t inner;
  int64_t channels;
  int64_t each;

  // Entries of the tables: one for each column, or for each statistic.
  int64_t entries() const { return count * each; }
};

constexpr int64_t kMostStandardized = 4096;  // elements of a group that is stored so

// The statistics of a tensor: a mean that is taken from each of their elements, and a factor by which the rest is
// multiplied; or the factor and what is added, on the way back. In the type that elements are computed in.
struct Standardization {
  StandardizedShape shape;
  const void* means;    // (count)
  const void* factors;  // (count)
};

// Where the statistics of a tensor are to be written, in the type that elements are computed in.
struct TakeMoments {
  const void* input;
  ElementType type;
  StandardizedShape shape;
  double* parts;     // room for the moments of parts of the tensor, which are put together
  void* means;       // (count)
  void* deviations;  // (count)
  void* factors;     // (count): by which elements less their mean are multiplied
};

// The same elements, looked at before they are stored.
struct WideGroup {
  const void* input;
  ElementType type;
  int64_t numel;
  int64_t group_size;
};

// Where the rows of a tensor lie when each has its own width: `rows` times `row_size` elements, the codes of one row
// after those of another.
struct RowWidths {
  const void* bits;  // (rows) integers of `integer_size` bytes: 1 (unsigned), 4 or 8 (signed)
  int integer_size;
  int64_t rows;
  int64_t row_size;
  int64_t nbytes;    // of all codes
  int64_t* offsets;  // (rows + 1): each row's first byte, or -1 where it is not stored; then the bytes that are used
};

enum class Float8Format { kE4M3, kE5M2 };

// Elements in memory order, in groups of `group_size` (a multiple of 32).
struct Float8Compress {
  const void* input;
  ElementType type;
  int64_t numel;
  int64_t group_size;
  Float8Format format;
  bool stochastic;
  NoiseKey key;
  uint8_t* codes;  // (numel)
  void* bounds;    // (groups) in the input's type: the largest magnitude; NaN for a group that is not finite
};

struct Float8Decompress {
  const uint8_t* codes;
  const void* bounds;
  ElementType type;
  int64_t numel;
  int64_t group_size;
  Float8Format format;
  void* output;
};

// Integers of 1, 2, 4 or 8 bytes from `low` to low + span, as unsigned numbers modulo their width. `bits` is the
// length of `span`.
struct NarrowCompress {
  const void* input;
  int element_size;
  int64_t numel;
  uint64_t low;
  uint64_t span;
  int bits;
  uint8_t* packed;  // packed_bytes(numel, bits), see codec/narrow.h
};

struct NarrowDecompress {
  const uint8_t* packed;
  int element_size;
  int64_t numel;
  uint64_t low;
  uint64_t span;
  int bits;
  void* output;
};

// Elements of 1, 2, 4 or 8 bytes that are either `low` or `high`, compared and written as bit patterns.
struct BitMaskCompress {
  const void* input;
  int element_size;
  bool boolean;  // every byte but 0 is true, as torch reads it, and is compared as 1
  int64_t numel;
  uint64_t low;
  uint64_t high;
  uint8_t* mask;  // packed_bytes(numel, 1); bit 1 where the element is `high`
};

struct BitMaskDecompress {
  const uint8_t* mask;
  int element_size;
  int64_t numel;
  uint64_t low;
  uint64_t high;
  void* output;
};

// Bit 1 where the element is positive or NaN: where ReLU's backward lets the gradient through.
struct PositiveMask {
  const void* input;
  ElementType type;
  int64_t numel;
  uint8_t* mask;
};

}  // namespace actcore
