// The operators that store bits: checks, output tensors, and what the kernels are told.
#pragma once

#include <cstring>

#include "ops/outputs.h"

namespace actcore::ops {

inline void require_codes(const char* op, const Tensor& codes) {
  require_contiguous(op, "codes", codes);
  require(codes.scalar_type() == ScalarType::Byte, op, "codes must be uint8");
}

// The bit pattern of `value` as an element of `type`, in the low bytes.
inline uint64_t pattern(const char* op, const char* name, double value, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return bits_of(static_cast<float>(value));
    case ScalarType::Half: return to_half(static_cast<float>(value)).bits;
    case ScalarType::BFloat16: return to_bfloat16(static_cast<float>(value)).bits;
    case ScalarType::Double: {
      uint64_t bits;
      memcpy(&bits, &value, sizeof bits);
      return bits;
    }
    default:
      require(value >= -0x1p63 && value < 0x1p63, op, name, " must fit in the integers of the tensor, got ", value);
      return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
}

inline int element_size(const char* op, const char* name, ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char: return 1;
    case ScalarType::Short:
    case ScalarType::Half:
    case ScalarType::BFloat16: return 2;
    case ScalarType::Int:
    case ScalarType::Float: return 4;
    case ScalarType::Long:
    case ScalarType::Double: return 8;
    default:
      require(false, op, name, " must be bool, an integer or a floating-point type of at most 8 bytes");
      return 0;
  }
}

struct BitMaskCall {
  BitMaskCompress args;
  Tensor mask;
};

inline BitMaskCall bit_mask_call(const Tensor& input, double low, double high) {
  const char* op = "bit_mask_compress";
  require_contiguous(op, "input", input);
  const ScalarType type = input.scalar_type();
  const int size = element_size(op, "input", type);
  Tensor mask = make_bytes(input, packed_bytes(input.numel(), 1));
  return {{input.const_data_ptr(), size, type == ScalarType::Bool, input.numel(), pattern(op, "low", low, type),
           pattern(op, "high", high, type), static_cast<uint8_t*>(mask.mutable_data_ptr())},
          mask};
}

struct BitMaskCompressCall {
  BitMaskCompress args;
  Tensor mask;
  Tensor misfit;
};

inline BitMaskCompressCall bit_mask_compress_call(const Tensor& input, double low, double high) {
  const auto [args, mask] = bit_mask_call(input, low, high);
  return {args, mask, make_misfit(input)};
}

struct BitMaskDecompressCall {
  BitMaskDecompress args;
  Tensor output;
};

inline BitMaskDecompressCall bit_mask_decompress_call(const Tensor& mask, int64_t numel, ScalarType dtype, double low,
                                                      double high) {
  const char* op = "bit_mask_decompress";
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  require_bytes(op, "mask", mask, packed_bytes(numel, 1));
  const int size = element_size(op, "dtype", dtype);
  Tensor output = make_empty(mask, {numel}, dtype);
  return {{static_cast<const uint8_t*>(mask.const_data_ptr()), size, numel, pattern(op, "low", low, dtype),
           pattern(op, "high", high, dtype), output.mutable_data_ptr()},
          output};
}

struct PositiveMaskCall {
  PositiveMask args;
  Tensor mask;
};

inline PositiveMaskCall positive_mask_call(const Tensor& input) {
  const char* op = "positive_mask";
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  Tensor mask = make_bytes(input, packed_bytes(input.numel(), 1));
  return {{input.const_data_ptr(), type, input.numel(), static_cast<uint8_t*>(mask.mutable_data_ptr())}, mask};
}

struct PackBitsCall {
  Tensor packed;
  Tensor misfit;
};

inline PackBitsCall pack_bits_call(const Tensor& codes, int64_t bits) {
  const char* op = "pack_bits";
  require_bits(op, bits);
  require_codes(op, codes);
  return {make_bytes(codes, packed_bytes(codes.numel(), static_cast<int>(bits))), make_misfit(codes)};
}

inline Tensor unpack_bits_call(const Tensor& packed, int64_t bits, int64_t numel) {
  const char* op = "unpack_bits";
  require_bits(op, bits);
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  require_bytes(op, "packed", packed, packed_bytes(numel, static_cast<int>(bits)));
  return make_bytes(packed, numel);
}

}  // namespace actcore::ops
