// What a kernel is told, on every device: plain pointers, sizes and options, already checked by csrc/ops.
#pragma once

#include <cstdint>

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
  uint64_t seed;
  uint64_t stream;
  uint8_t* codes;  // packed_bytes(numel, bits)
  void* bounds;    // (groups, 2) in the input's type: low, high; both NaN for a group that is not finite
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
