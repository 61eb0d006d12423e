// The float8 operators: checks, output tensors, and what the kernels are told.
#pragma once

#include "ops/checks.h"
#include "ops/noise.h"
#include "ops/outputs.h"

namespace actcore::ops {

inline Float8Format float8_format(const char* op, ScalarType format) {
  const bool e5m2 = format == ScalarType::Float8_e5m2;
  require(e5m2 || format == ScalarType::Float8_e4m3fn, op, "format must be float8_e4m3fn or float8_e5m2");
  return e5m2 ? Float8Format::kE5M2 : Float8Format::kE4M3;
}

struct Float8CompressCall {
  Float8Compress args;
  Tensor codes;
  Tensor bounds;
  int64_t groups;
};

// Key is int64_t or Tensor.
template <class Key>
Float8CompressCall float8_compress_call(const Tensor& input, ScalarType format, int64_t group_size, bool stochastic,
                                        const Key& seed, const Key& stream) {
  const char* op = "float8_compress";
  const Float8Format code = float8_format(op, format);
  require_group_size(op, group_size);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  const NoiseKey key = noise_key(op, input, seed, stream);
  const int64_t numel = input.numel();
  const int64_t groups = group_count(numel, group_size);
  Tensor codes = make_bytes(input, numel);
  Tensor bounds = make_empty(input, {groups});
  return {{input.const_data_ptr(), type, numel, group_size, code, stochastic, key,
           static_cast<uint8_t*>(codes.mutable_data_ptr()), bounds.mutable_data_ptr()},
          codes,
          bounds,
          groups};
}

struct Float8DecompressCall {
  Float8Decompress args;
  Tensor output;
  int64_t groups;
};

inline Float8DecompressCall float8_decompress_call(const Tensor& codes, const Tensor& bounds, ScalarType format,
                                                   int64_t group_size) {
  const char* op = "float8_decompress";
  const Float8Format code = float8_format(op, format);
  require_group_size(op, group_size);
  const int64_t numel = codes.numel();
  require_bytes(op, "codes", codes, numel);
  require_contiguous(op, "bounds", bounds);
  const ElementType type = element_type(op, "bounds", bounds.scalar_type());
  const int64_t groups = group_count(numel, group_size);
  require(bounds.numel() == groups, op, "bounds must hold ", groups, " values, got ", bounds.numel(),
          "; the stored form is damaged or belongs to another tensor");
  require(bounds.device() == codes.device(), op, "codes and bounds must be on one device");
  Tensor output = make_empty(bounds, {numel});
  return {{static_cast<const uint8_t*>(codes.const_data_ptr()), bounds.const_data_ptr(), type, numel, group_size, code,
           output.mutable_data_ptr()},
          output,
          groups};
}

}  // namespace actcore::ops
