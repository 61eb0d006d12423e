// The group-affine operators: checks, output tensors, and what the kernels are told.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "codec/activation.h"
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

// What the kernel is told, without where it writes.
inline GroupAffineCompress group_affine_args(const char* op, const Tensor& input, int64_t bits, int64_t group_size,
                                             bool stochastic) {
  require_bits(op, bits);
  require_group_size(op, group_size);
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  return {input.const_data_ptr(),
          type,
          input.numel(),
          group_size,
          static_cast<int>(bits),
          stochastic,
          {},
          0,
          nullptr,
          nullptr};
}

// Key is int64_t or Tensor.
template <class Key>
GroupAffineCompressCall group_affine_compress_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                   bool stochastic, const Key& seed, const Key& stream,
                                                   const char* op = "group_affine_compress") {
  GroupAffineCompress args = group_affine_args(op, input, bits, group_size, stochastic);
  args.key = noise_key(op, input, seed, stream);
  const int64_t groups = group_count(args.numel, group_size);
  Tensor codes = make_bytes(input, packed_bytes(args.numel, args.bits));
  Tensor bounds = make_empty(input, {groups, 2});
  args.codes = static_cast<uint8_t*>(codes.mutable_data_ptr());
  args.bounds = bounds.mutable_data_ptr();
  return {args, codes, bounds, groups};
}

// Where the bounds begin in a payload, which holds the codes before them.
inline int64_t bounds_offset(int64_t numel, int bits, size_t element_size) {
  const auto pair = static_cast<int64_t>(2 * element_size);
  return (packed_bytes(numel, bits) + pair - 1) / pair * pair;
}

struct GroupAffinePackCall {
  GroupAffineCompress args;
  Tensor payload;
  int64_t groups;

  // The bytes between the codes and the bounds.
  uint8_t* gap() const { return args.codes + packed_bytes(args.numel, args.bits); }
  size_t gap_bytes() const { return static_cast<size_t>(static_cast<uint8_t*>(args.bounds) - gap()); }
};

// As group_affine_compress_call, into one tensor.
inline GroupAffinePackCall group_affine_pack_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                  bool stochastic, int64_t seed, const Tensor& stream) {
  const char* op = "group_affine_compress";
  GroupAffineCompress args = group_affine_args(op, input, bits, group_size, stochastic);
  args.key = noise_key(op, input, seed, stream);
  const int64_t groups = group_count(args.numel, group_size);
  const int64_t offset = bounds_offset(args.numel, args.bits, input.element_size());
  Tensor payload = make_bytes(input, offset + 2 * groups * static_cast<int64_t>(input.element_size()));
  args.codes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  args.bounds = args.codes + offset;
  return {args, payload, groups};
}

inline GroupAffineCompressCall group_affine_clamped_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                         bool stochastic, int64_t seed, int64_t stream, double least,
                                                         double most) {
  const char* op = "group_affine_clamped_compress";
  require(std::isfinite(least) && std::isfinite(most) && least <= most, op,
          "least and most must be finite, and least not above most, got ", least, " and ", most);
  auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream, op);
  call.args.clamps = true, call.args.least = least, call.args.most = most;
  return call;
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

// As group_affine_decompress_call, of elements of `dtype` whose codes and bounds are in one tensor.
inline GroupAffineDecompressCall group_affine_unpack_call(const Tensor& payload, int64_t numel, ScalarType dtype,
                                                          int64_t bits, int64_t group_size) {
  const char* op = "group_affine_decompress";
  require_bits(op, bits);
  require_group_size(op, group_size);
  require(numel >= 0, op, "numel must not be negative, got ", numel);
  const ElementType type = element_type(op, "dtype", dtype);
  const int64_t groups = group_count(numel, group_size);
  Tensor output = make_empty(payload, {numel}, dtype);
  const int width = static_cast<int>(bits);
  const size_t size = output.element_size();
  const int64_t offset = bounds_offset(numel, width, size);
  require_bytes(op, "payload", payload, offset + 2 * groups * static_cast<int64_t>(size));
  const auto* at = static_cast<const uint8_t*>(payload.const_data_ptr());
  return {{at, at + offset, type, numel, group_size, width, output.mutable_data_ptr()}, output, groups};
}

// Of which elements each statistic of a standardised tensor is.
inline StandardizedShape standardized_shape(const char* op, int64_t numel, int64_t count, int64_t inner,
                                            int64_t channels, int64_t group_size) {
  require(group_size <= kMostStandardized, op, "group_size must be at most ", kMostStandardized, ", got ", group_size);
  require(channels >= 0 && inner > 0 && count > 0, op, "channels must not be negative, inner and statistics positive, ",
          "got ", channels, ", ", inner, " and ", count);
  if (numel == 0) return {numel, 1, inner, 0, 1};
  // Divided, since a product could overflow.
  const int64_t columns = channels && numel % channels == 0 && numel / channels % inner == 0 ? numel / inner : 0;
  const bool last = columns && columns % count == 0 && channels % (columns / count) == 0;
  const bool first = channels == 0 && numel % count == 0 && numel / count % inner == 0;
  require(last || first, op, numel, " elements must be whole runs or rows of ", count, " statistics, by inner=", inner,
          " and channels=", channels);
  return {numel, count, inner, channels, last ? columns / count : 1};
}

// The dtype in which elements of a tensor's are computed.
inline ScalarType computed_in(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

struct StandardizedCompressCall {
  GroupAffineCompressCall codes;
  StandardizedShape shape;
  Tensor found;      // means, and deviations in the second row
  void* means;       // where these are
  void* deviations;  // likewise
};

inline StandardizedCompressCall standardized_compress_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                           bool stochastic, int64_t seed, int64_t stream,
                                                           int64_t statistics, int64_t inner, int64_t channels) {
  const char* op = "group_affine_standardized_compress";
  auto call = group_affine_compress_call(input, bits, group_size, stochastic, seed, stream, op);
  const StandardizedShape shape = standardized_shape(op, input.numel(), statistics, inner, channels, group_size);
  Tensor found = make_empty(input, {2, input.numel() ? shape.count : 0}, computed_in(input));
  auto* means = static_cast<char*>(found.mutable_data_ptr());
  return {call, shape, found, means, means + shape.count * static_cast<int64_t>(found.element_size())};
}

struct StandardizedDecompressCall {
  GroupAffineDecompressCall values;
  StandardizedShape shape;
  const void* means;
  const void* deviations;
};

inline StandardizedDecompressCall standardized_decompress_call(const Tensor& codes, const Tensor& bounds,
                                                               const Tensor& statistics, int64_t numel, int64_t inner,
                                                               int64_t channels, int64_t bits, int64_t group_size) {
  const char* op = "group_affine_standardized_decompress";
  auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size, op);
  require_contiguous(op, "statistics", statistics);
  require(statistics.scalar_type() == computed_in(bounds), op, "statistics must be ",
          computed_in(bounds) == ScalarType::Double ? "float64" : "float32", " for elements of this dtype");
  require(statistics.device() == codes.device(), op, "codes and statistics must be on one device");
  if (numel == 0) return {call, {0, 1, 1, 0, 1}, nullptr, nullptr};
  require(statistics.dim() == 2 && statistics.size(0) == 2, op, "statistics must be means and deviations: (2, count)");
  const StandardizedShape shape = standardized_shape(op, numel, statistics.size(1), inner, channels, group_size);
  const auto* means = static_cast<const char*>(statistics.const_data_ptr());
  return {call, shape, means, means + shape.count * static_cast<int64_t>(statistics.element_size())};
}

struct StandardizedGivenCall {
  GroupAffineCompress args;
  StandardizedShape shape;
  int64_t groups;
  const void* means;
  const void* factors;
  void* found;       // means
  void* deviations;  // the second row
};

// One number for each statistic, in the type that elements are computed in.
inline const void* statistics_given(const char* op, const char* name, const Tensor& given, const Tensor& elements) {
  require_contiguous(op, name, given);
  require(given.dim() == 1 && given.scalar_type() == computed_in(elements), op, name, " must be 1-D and ",
          computed_in(elements) == ScalarType::Double ? "float64" : "float32", " for elements of this dtype");
  require(given.device() == elements.device(), op, name, " must be on the device of the elements");
  return given.const_data_ptr();
}

inline StandardizedGivenCall standardized_given_call(const Tensor& input, int64_t bits, int64_t group_size,
                                                     bool stochastic, int64_t seed, int64_t stream, const Tensor& means,
                                                     const Tensor& factors, int64_t inner, int64_t channels,
                                                     const Tensor& codes, const Tensor& bounds,
                                                     const Tensor& statistics) {
  const char* op = "group_affine_standardized_compress";
  GroupAffineCompress args = group_affine_args(op, input, bits, group_size, stochastic);
  args.key = noise_key(op, input, seed, stream);
  const int64_t groups = group_count(args.numel, group_size), count = means.numel();
  const StandardizedShape shape = standardized_shape(op, args.numel, count, inner, channels, group_size);
  require(factors.numel() == count, op, "factors must be as many as means, ", count, ", got ", factors.numel());
  const void *mean = statistics_given(op, "means", means, input),
             *factor = statistics_given(op, "factors", factors, input);
  require_bytes(op, "codes", codes, packed_bytes(args.numel, args.bits));
  require_contiguous(op, "bounds", bounds);
  require_contiguous(op, "statistics", statistics);
  require(bounds.scalar_type() == input.scalar_type() && bounds.numel() == 2 * groups, op, "bounds must hold ", groups,
          " pairs in input's dtype, got ", bounds.numel(), " values");
  require(statistics.scalar_type() == computed_in(input) && statistics.numel() == 2 * count, op,
          "statistics must hold ", 2 * count, " values in the dtype of means, got ", statistics.numel());
  require(
      codes.device() == input.device() && bounds.device() == input.device() && statistics.device() == input.device(),
      op, "codes, bounds and statistics must be on the device of input");
  args.codes = static_cast<uint8_t*>(codes.mutable_data_ptr());
  args.bounds = bounds.mutable_data_ptr();
  auto* found = static_cast<char*>(statistics.mutable_data_ptr());
  return {args, shape, groups, mean, factor, found, found + count * static_cast<int64_t>(statistics.element_size())};
}

struct StandardizedActivationCall {
  GroupAffineDecompressCall values;
  Activation activation;
};

inline StandardizedActivationCall standardized_activation_call(const Tensor& codes, const Tensor& bounds,
                                                               const Tensor& scales, const Tensor& shifts,
                                                               const std::optional<Tensor>& added, int64_t numel,
                                                               int64_t inner, int64_t channels, int64_t bits,
                                                               int64_t group_size, const std::string& function) {
  const char* op = "group_affine_standardized_activation";
  auto call = group_affine_decompress_call(codes, bounds, numel, bits, group_size, op);
  const void *scale = statistics_given(op, "scales", scales, bounds),
             *shift = statistics_given(op, "shifts", shifts, bounds);
  require(scales.numel() == shifts.numel(), op, "scales must be as many as shifts, ", shifts.numel(), ", got ",
          scales.numel());
  const StandardizedShape shape = numel == 0
                                      ? StandardizedShape{0, 1, 1, 0, 1}  // of which there are no statistics
                                      : standardized_shape(op, numel, scales.numel(), inner, channels, group_size);
  const void* other = nullptr;
  if (added.has_value()) {
    require_contiguous(op, "added", *added);
    require(added->scalar_type() == bounds.scalar_type() && added->numel() == numel, op, "added must be ", numel,
            " elements in the dtype of bounds, got ", added->numel());
    require(added->device() == codes.device(), op, "codes and added must be on one device");
    other = added->const_data_ptr();
  }
  const bool linear = function == "none";
  Function found = Function::kRelu;
  if (function == "silu") found = Function::kSilu;
  if (function == "gelu") found = Function::kGelu;
  if (function == "gelu_tanh") found = Function::kGeluTanh;
  require(linear || found != Function::kRelu || function == "relu", op,
          "function must be one of none, relu, silu, gelu, gelu_tanh; got '", function, "'");
  return {call, {{shape, shift, scale}, other, linear, found}};
}

}  // namespace actcore::ops
