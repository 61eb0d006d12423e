// From an operator's arguments to a kernel's: checks, output tensors, plain pointers. The same for every device.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

#include "codec/arguments.h"
#include "codec/bits.h"
#include "codec/float16.h"

namespace actcore::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Errors read "operator: argument must ..., got ...".
template <class... Parts>
void require(bool holds, const char* op, const Parts&... message) {
  if (holds) return;
  std::ostringstream text;
  text << "actcore::" << op << ": ";
  (text << ... << message);
  throw std::runtime_error(text.str());
}

inline void require_bits(const char* op, int64_t bits) {
  require(bits >= 1 && bits <= kMaxBits, op, "bits must be from 1 to 8, got ", bits);
}

inline void require_group_size(const char* op, int64_t group_size) {
  require(group_size >= 32 && group_size % 32 == 0, op, "group_size must be a positive multiple of 32, got ",
          group_size);
}

inline void require_contiguous(const char* op, const char* name, const Tensor& tensor) {
  require(tensor.is_contiguous(), op, name, " must be contiguous; call .contiguous() first");
}

inline void require_bytes(const char* op, const char* name, const Tensor& tensor, int64_t expected) {
  require_contiguous(op, name, tensor);
  require(tensor.scalar_type() == ScalarType::Byte, op, name, " must be uint8");
  require(tensor.numel() == expected, op, name, " must hold ", expected, " bytes, got ", tensor.numel(),
          "; the stored form is damaged or belongs to another tensor");
}

inline bool is_floating(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}

inline ElementType element_type(const char* op, const char* name, ScalarType type) {
  require(is_floating(type), op, name, " must be float32, float64, float16 or bfloat16");
  switch (type) {
    case ScalarType::Double: return ElementType::kFloat64;
    case ScalarType::Half: return ElementType::kFloat16;
    case ScalarType::BFloat16: return ElementType::kBFloat16;
    default: return ElementType::kFloat32;
  }
}

inline Tensor new_bytes(const Tensor& like, int64_t count) {
  return torch::stable::new_empty(like, {count}, ScalarType::Byte);
}

// ---- group affine ----

struct GroupAffineCompressCall {
  GroupAffineCompress args;
  Tensor codes;
  Tensor bounds;
  int64_t groups;
};

inline GroupAffineCompressCall group_affine_compress_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                          bool stochastic, int64_t seed, int64_t stream) {
  const char* op = "group_affine_compress";
  require_bits(op, bits);
  require_group_size(op, group_size);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  const int64_t numel = input.numel();
  const int64_t groups = numel / group_size + (numel % group_size != 0);
  const int width = static_cast<int>(bits);
  Tensor codes = new_bytes(input, packed_bytes(numel, width));
  Tensor bounds = torch::stable::new_empty(input, {groups, 2});
  return {{input.const_data_ptr(), type, numel, group_size, width, stochastic, static_cast<uint64_t>(seed),
           static_cast<uint64_t>(stream), static_cast<uint8_t*>(codes.mutable_data_ptr()), bounds.mutable_data_ptr()},
          codes,
          bounds,
          groups};
}

struct GroupAffineDecompressCall {
  GroupAffineDecompress args;
  Tensor output;
  int64_t groups;
};

inline GroupAffineDecompressCall group_affine_decompress_call(const Tensor& codes, const Tensor& bounds, int64_t numel,
                                                              int64_t bits, int64_t group_size) {
  const char* op = "group_affine_decompress";
  require_bits(op, bits);
  require_group_size(op, group_size);
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  const int width = static_cast<int>(bits);
  require_bytes(op, "codes", codes, packed_bytes(numel, width));
  require_contiguous(op, "bounds", bounds);
  const ElementType type = element_type(op, "bounds", bounds.scalar_type());
  const int64_t groups = numel / group_size + (numel % group_size != 0);
  require(bounds.numel() == 2 * groups, op, "bounds must hold ", groups, " pairs, got ", bounds.numel(),
          " values; the stored form is damaged or belongs to another tensor");
  require(bounds.device() == codes.device(), op, "codes and bounds must be on one device");
  Tensor output = torch::stable::new_empty(bounds, {numel});
  return {{static_cast<const uint8_t*>(codes.const_data_ptr()), bounds.const_data_ptr(), type, numel, group_size, width,
           output.mutable_data_ptr()},
          output,
          groups};
}

// ---- bits ----

inline void require_codes(const char* op, const Tensor& codes) {
  require_contiguous(op, "codes", codes);
  require(codes.scalar_type() == ScalarType::Byte, op, "codes must be uint8");
}

// The bit pattern of `value` as an element of `type`, in the low bytes.
inline uint64_t pattern(double value, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return bits_of(static_cast<float>(value));
    case ScalarType::Half: return to_half(static_cast<float>(value)).bits;
    case ScalarType::BFloat16: return to_bfloat16(static_cast<float>(value)).bits;
    case ScalarType::Double: {
      uint64_t bits;
      memcpy(&bits, &value, sizeof bits);
      return bits;
    }
    default: return static_cast<uint64_t>(static_cast<int64_t>(value));
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

struct BitMaskCompressCall {
  BitMaskCompress args;
  Tensor mask;
  Tensor misfit;
};

inline BitMaskCompressCall bit_mask_compress_call(const Tensor& input, double low, double high) {
  const char* op = "bit_mask_compress";
  require_contiguous(op, "input", input);
  const ScalarType type = input.scalar_type();
  const int size = element_size(op, "input", type);
  Tensor mask = new_bytes(input, packed_bytes(input.numel(), 1));
  Tensor misfit = torch::stable::new_zeros(input, {1}, ScalarType::Int);
  return {{input.const_data_ptr(), size, input.numel(), pattern(low, type), pattern(high, type),
           static_cast<uint8_t*>(mask.mutable_data_ptr())},
          mask,
          misfit};
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
  Tensor output = torch::stable::new_empty(mask, {numel}, dtype);
  return {{static_cast<const uint8_t*>(mask.const_data_ptr()), size, numel, pattern(low, dtype), pattern(high, dtype),
           output.mutable_data_ptr()},
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
  Tensor mask = new_bytes(input, packed_bytes(input.numel(), 1));
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
  return {new_bytes(codes, packed_bytes(codes.numel(), static_cast<int>(bits))),
          torch::stable::new_zeros(codes, {1}, ScalarType::Int)};
}

inline Tensor unpack_bits_call(const Tensor& packed, int64_t bits, int64_t numel) {
  const char* op = "unpack_bits";
  require_bits(op, bits);
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  require_bytes(op, "packed", packed, packed_bytes(numel, static_cast<int>(bits)));
  return new_bytes(packed, numel);
}

}  // namespace actcore::ops
