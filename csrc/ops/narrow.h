// The operators that store integers of a known range: checks, output tensors, and what the kernels are told.
#pragma once

#include <bit>
#include <limits>

#include "ops/outputs.h"

namespace actcore::ops {

struct IntegerRange {
  int element_size;
  uint64_t low;
  uint64_t span;
  int bits;
};

template <class Integer>
IntegerRange integer_range(const char* op, int64_t low, int64_t high,
                           int64_t least = std::numeric_limits<Integer>::min(),
                           int64_t most = std::numeric_limits<Integer>::max()) {
  require(low <= high && low >= least && high <= most, op, "low and high must be in order and from ", least, " to ",
          most, " for this dtype, got ", low, " and ", high);
  // Modulo 2^64: from the smallest int64 to the largest the difference has no sign bit to spare.
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  return {static_cast<int>(sizeof(Integer)), static_cast<uint64_t>(low), span, static_cast<int>(std::bit_width(span))};
}

inline IntegerRange integer_range(const char* op, const char* name, ScalarType type, int64_t low, int64_t high) {
  switch (type) {
    case ScalarType::Bool: return integer_range<uint8_t>(op, low, high, 0, 1);
    case ScalarType::Byte: return integer_range<uint8_t>(op, low, high);
    case ScalarType::Char: return integer_range<int8_t>(op, low, high);
    case ScalarType::Short: return integer_range<int16_t>(op, low, high);
    case ScalarType::Int: return integer_range<int32_t>(op, low, high);
    case ScalarType::Long: return integer_range<int64_t>(op, low, high);
    default: require(false, op, name, " must be bool, uint8, int8, int16, int32 or int64"); return {};
  }
}

struct NarrowCompressCall {
  NarrowCompress args;
  Tensor packed;
  Tensor misfit;
};

inline NarrowCompressCall narrow_compress_call(const Tensor& input, int64_t low, int64_t high) {
  const char* op = "narrow_compress";
  require_contiguous(op, "input", input);
  const IntegerRange range = integer_range(op, "input", input.scalar_type(), low, high);
  Tensor packed = make_bytes(input, packed_bytes(input.numel(), range.bits));
  Tensor misfit = make_misfit(input);
  return {{input.const_data_ptr(), range.element_size, input.numel(), range.low, range.span, range.bits,
           static_cast<uint8_t*>(packed.mutable_data_ptr())},
          packed,
          misfit};
}

struct NarrowDecompressCall {
  NarrowDecompress args;
  Tensor output;
};

inline NarrowDecompressCall narrow_decompress_call(const Tensor& packed, int64_t numel, ScalarType dtype, int64_t low,
                                                   int64_t high) {
  const char* op = "narrow_decompress";
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  const IntegerRange range = integer_range(op, "dtype", dtype, low, high);
  // Beyond it no tensor of this dtype exists, and the number of bytes would overflow.
  require(numel <= std::numeric_limits<int64_t>::max() / 8, op, "numel must be below 2^60, got ", numel);
  require_bytes(op, "packed", packed, packed_bytes(numel, range.bits));
  Tensor output = make_empty(packed, {numel}, dtype);
  return {{static_cast<const uint8_t*>(packed.const_data_ptr()), range.element_size, numel, range.low, range.span,
           range.bits, output.mutable_data_ptr()},
          output};
}

}  // namespace actcore::ops
