// The group-affine operators with a width for each row: checks, output tensors, and what the kernels are told.
#pragma once

#include "codec/rows.h"
#include "ops/checks.h"
#include "ops/noise.h"
#include "ops/outputs.h"

namespace actcore::ops {

// `offsets` is new memory that a kernel fills.
struct RowsCall {
  RowWidths widths;
  Tensor offsets;
  Tensor misfit;
  int64_t groups;  // of one row
};

inline RowsCall rows_call(const char* op, const Tensor& bits, const Tensor& like, int64_t numel, int64_t nbytes,
                          int64_t group_size) {
  require_group_size(op, group_size);
  require_contiguous(op, "bits", bits);
  const ScalarType type = bits.scalar_type();
  require(type == ScalarType::Byte || type == ScalarType::Int || type == ScalarType::Long, op,
          "bits must be uint8, int32 or int64");
  require(bits.device() == like.device(), op, "bits must be on the device of the data");
  const int64_t rows = bits.numel();
  require(rows > 0 ? numel % rows == 0 : numel == 0, op, "bits must hold one width for each row, got ", rows,
          " widths for ", numel, " elements");
  const int64_t row_size = rows > 0 ? numel / rows : 0;
  Tensor offsets = make_empty(like, {rows + 1}, ScalarType::Long);
  Tensor misfit = make_misfit(like);
  return {{bits.const_data_ptr(), static_cast<int>(bits.element_size()), rows, row_size, nbytes,
           static_cast<int64_t*>(offsets.mutable_data_ptr())},
          offsets,
          misfit,
          group_count(row_size, group_size)};
}

struct RowsCompressCall {
  RowsCall rows;
  GroupAffineCompress args;
  Tensor codes;
  Tensor bounds;
};

// Key is int64_t or Tensor.
template <class Key>
RowsCompressCall group_affine_rows_compress_call(const Tensor& input, const Tensor& bits, int64_t nbytes,
                                                 int64_t group_size, bool stochastic, const Key& seed,
                                                 const Key& stream) {
  const char* op = "group_affine_rows_compress";
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  require(nbytes >= 0, op, "nbytes must not be negative, got ", nbytes);
  const NoiseKey key = noise_key(op, input, seed, stream);
  RowsCall rows = rows_call(op, bits, input, input.numel(), nbytes, group_size);
  Tensor codes = make_bytes(input, nbytes);
  Tensor bounds = make_empty(input, {rows.widths.rows * rows.groups, 2});
  const GroupAffineCompress args = {input.const_data_ptr(),
                                    type,
                                    input.numel(),
                                    group_size,
                                    0,
                                    stochastic,
                                    key,
                                    0,
                                    static_cast<uint8_t*>(codes.mutable_data_ptr()),
                                    bounds.mutable_data_ptr()};
  return {rows, args, codes, bounds};
}

struct RowsDecompressCall {
  RowsCall rows;
  GroupAffineDecompress args;
  Tensor output;
};

inline RowsDecompressCall group_affine_rows_decompress_call(const Tensor& codes, const Tensor& bounds,
                                                            const Tensor& bits, int64_t numel, int64_t group_size) {
  const char* op = "group_affine_rows_decompress";
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  require_bytes(op, "codes", codes, codes.numel());
  require_contiguous(op, "bounds", bounds);
  const ElementType type = element_type(op, "bounds", bounds.scalar_type());
  require(bounds.device() == codes.device(), op, "codes and bounds must be on one device");
  RowsCall rows = rows_call(op, bits, codes, numel, codes.numel(), group_size);
  const int64_t groups = rows.widths.rows * rows.groups;
  require(bounds.numel() == 2 * groups, op, "bounds must hold ", groups, " pairs, got ", bounds.numel(),
          " values; the stored form is damaged or belongs to another tensor");
  Tensor output = make_empty(bounds, {numel});
  const GroupAffineDecompress args = {static_cast<const uint8_t*>(codes.const_data_ptr()),
                                      bounds.const_data_ptr(),
                                      type,
                                      numel,
                                      group_size,
                                      0,
                                      output.mutable_data_ptr()};
  return {rows, args, output};
}

}  // namespace actcore::ops
