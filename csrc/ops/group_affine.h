// The group-affine operators: checks, output tensors, and what the kernels are told.
#pragma once

#include "ops/checks.h"
#include "ops/noise.h"
#include "ops/outputs.h"

namespace actcore::ops {

struct GroupAffineCompressCall {
  GroupAffineCompress args;
  Tensor codes;
  Tensor bounds;
  int64_t groups;
};

// Key is int64_t or Tensor.
template <class Key>
GroupAffineCompressCall group_affine_compress_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                   bool stochastic, const Key& seed, const Key& stream,
                                                   const char* op = "group_affine_compress") {
  require_bits(op, bits);
  require_group_size(op, group_size);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  const NoiseKey key = noise_key(op, input, seed, stream);
  const int64_t numel = input.numel();
  const int64_t groups = group_count(numel, group_size);
  const int width = static_cast<int>(bits);
  Tensor codes = make_bytes(input, packed_bytes(numel, width));
  Tensor bounds = make_empty(input, {groups, 2});
  return {{input.const_data_ptr(), type, numel, group_size, width, stochastic, key, 0,
           static_cast<uint8_t*>(codes.mutable_data_ptr()), bounds.mutable_data_ptr()},
          codes,
          bounds,
          groups};
}

struct WideGroupCall {
  WideGroup args;
  Tensor wide;
  int64_t groups;
};

inline WideGroupCall wide_group_call(const Tensor& input, int64_t group_size) {
  const char* op = "has_wide_group";
  require_group_size(op, group_size);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  const int64_t numel = input.numel();
  return {{input.const_data_ptr(), type, numel, group_size}, make_misfit(input), group_count(numel, group_size)};
}

struct GroupAffineDecompressCall {
  GroupAffineDecompress args;
  Tensor output;
  int64_t groups;
};

inline GroupAffineDecompressCall group_affine_decompress_call(const Tensor& codes, const Tensor& bounds, int64_t numel,
                                                              int64_t bits, int64_t group_size,
                                                              const char* op = "group_affine_decompress") {
  require_bits(op, bits);
  require_group_size(op, group_size);
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  const int width = static_cast<int>(bits);
  require_bytes(op, "codes", codes, packed_bytes(numel, width));
  require_contiguous(op, "bounds", bounds);
  const ElementType type = element_type(op, "bounds", bounds.scalar_type());
  const int64_t groups = group_count(numel, group_size);
  require(bounds.numel() == 2 * groups, op, "bounds must hold ", groups, " pairs, got ", bounds.numel(),
          " values; the stored form is damaged or belongs to another tensor");
  require(bounds.device() == codes.device(), op, "codes and bounds must be on one device");
  Tensor output = make_empty(bounds, {numel});
  return {{static_cast<const uint8_t*>(codes.const_data_ptr()), bounds.const_data_ptr(), type, numel, group_size, width,
           output.mutable_data_ptr()},
          output,
          groups};
}

// Of how many elements, with which means and factors, both calls of a standardised tensor are.
inline ChannelTables channel_tables(const char* op, const Tensor& like, const Tensor& mean, const Tensor& factor,
                                    int64_t channels, int64_t inner, int64_t numel, int64_t group_size) {
  require_contiguous(op, "mean", mean);
  require_contiguous(op, "factor", factor);
  const bool wide = like.scalar_type() == ScalarType::Double;
  const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
  require(mean.scalar_type() == type && factor.scalar_type() == type, op, "mean and factor must be ",
          wide ? "float64" : "float32", " beside elements of this dtype");
  const int64_t entries = mean.numel();
  require(entries > 0 && factor.numel() == entries, op,
          "mean and factor must have as many entries, and at least one, got ", entries, " and ", factor.numel());
  require(channels >= 0 && inner > 0, op, "channels must not be negative and inner must be positive, got ", channels,
          " and ", inner);
  require(group_size <= kMostStandardized, op, "group_size must be at most ", kMostStandardized, ", got ", group_size);
  // Divided, since a product could overflow.
  const bool last = channels > 0 && entries % channels == 0 && numel % entries == 0 && numel / entries == inner;
  const bool first = channels == 0 && numel % entries == 0 && numel / entries % inner == 0;
  require(last || first || numel == 0, op, numel, " elements must be whole rows of the tables' ", entries,
          " entries, by channels=", channels, " and inner=", inner);
  return {mean.const_data_ptr(), factor.const_data_ptr(), entries, channels, inner};
}

}  // namespace actcore::ops
