// Max pooling: torch's rules about shapes, output tensors, and what the kernels are told.
#pragma once

#include <vector>

#include "codec/pool.h"
#include "ops/outputs.h"

namespace actcore::ops {

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The options as they are given to every pooling operator, one number a dimension.
struct PoolOptions {
  const Ints& kernel;
  const Ints& stride;
  const Ints& padding;
  const Ints& dilation;
  bool ceil_mode;
};

// Outputs of one dimension. With ceil_mode, torch leaves out a last window that would start in the right padding.
inline int64_t pooled_size(const char* op, int64_t size, const PoolOptions& options, size_t d) {
  const int64_t covered = options.dilation[d] * (options.kernel[d] - 1) + 1;
  const int64_t room = size + 2 * options.padding[d] - covered;
  require(room >= 0 || (options.ceil_mode && room > -options.stride[d]), op, "kernel ", options.kernel[d],
          " with dilation ", options.dilation[d], " does not fit into ", size, " elements with padding ",
          options.padding[d], "; pad the input or take a smaller kernel");
  int64_t out = (options.ceil_mode ? ceil_divide(room, options.stride[d]) : room / options.stride[d]) + 1;
  if (options.ceil_mode && (out - 1) * options.stride[d] >= size + options.padding[d]) --out;
  require(out >= 1, op, "the output would be empty: ", size, " elements, kernel ", options.kernel[d]);
  return out;
}

inline void require_options(const char* op, size_t dims, const PoolOptions& options) {
  require(dims >= 1 && dims <= kPoolDims, op, "kernel must have 1 to 3 numbers, got ", dims);
  const Ints* const lists[] = {&options.stride, &options.padding, &options.dilation};
  const char* const names[] = {"stride", "padding", "dilation"};
  for (int i = 0; i < 3; ++i) {
    require(lists[i]->size() == dims, op, names[i], " must have ", dims, " numbers like kernel, got ",
            lists[i]->size());
  }
  int64_t window = 1;
  for (size_t d = 0; d < dims; ++d) {
    constexpr int64_t kLargest = int64_t{1} << 31;
    require(options.kernel[d] >= 1, op, "kernel must be positive, got ", options.kernel[d]);
    require(options.stride[d] >= 1 && options.stride[d] < kLargest, op, "stride must be positive, got ",
            options.stride[d]);
    require(options.dilation[d] >= 1 && options.dilation[d] < kLargest, op, "dilation must be positive, got ",
            options.dilation[d]);
    require(
        options.kernel[d] <= kMaxWindow && (window *= options.kernel[d]) <= kMaxWindow, op,
        "a window must have at most 256 elements, so that an index fits in 8 bits; use torch.nn.functional.max_pool",
        dims, "d for larger ones");
    const int64_t most = ((options.kernel[d] - 1) * options.dilation[d] + 1) / 2;
    require(options.padding[d] >= 0 && options.padding[d] <= most, op,
            "padding must be from 0 to half of the dilated kernel, ", most, ", got ", options.padding[d]);
  }
}

// The shape of pooling whose input has `sizes`; all dimensions before the pooled ones are planes.
inline PoolShape pool_shape(const char* op, const Ints& sizes, const PoolOptions& options) {
  const size_t dims = options.kernel.size();
  require_options(op, dims, options);
  require(sizes.size() >= dims, op, "the input must have at least the ", dims, " dimensions of kernel, got ",
          sizes.size());
  PoolShape shape = {1, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
  const size_t leading = sizes.size() - dims;
  for (size_t i = 0; i < leading; ++i) shape.planes *= sizes[i];
  int64_t window = 1;
  for (size_t i = 0; i < dims; ++i) {
    const size_t d = kPoolDims - dims + i;
    const int64_t size = sizes[leading + i];
    require(size >= 1, op, "pooled dimensions must not be empty, got ", size);
    shape.size[d] = size;
    shape.out[d] = pooled_size(op, size, options, i);
    shape.kernel[d] = options.kernel[i];
    shape.stride[d] = options.stride[i];
    shape.padding[d] = options.padding[i];
    shape.dilation[d] = options.dilation[i];
    window *= options.kernel[i];
  }
  while ((int64_t{1} << shape.bits) < window) ++shape.bits;
  return shape;
}

inline Ints pooled_sizes(Ints sizes, const PoolShape& shape, size_t dims) {
  for (size_t i = 0; i < dims; ++i) sizes[sizes.size() - dims + i] = shape.out[kPoolDims - dims + i];
  return sizes;
}

inline void require_sizes(const char* op, const char* name, const Tensor& tensor, const Ints& expected) {
  require_contiguous(op, name, tensor);
  std::ostringstream text;
  for (const int64_t size : expected) text << (text.tellp() > 0 ? ", " : "") << size;
  require(sizes_of(tensor) == expected, op, name, " must have the shape of the pooling's output, (", text.str(), ")");
}

struct MaxPoolCall {
  MaxPool args;
  Tensor output;
  Tensor packed;
};

inline MaxPoolCall max_pool_call(const Tensor& input, const PoolOptions& options) {
  const char* op = "max_pool";
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  const PoolShape shape = pool_shape(op, sizes_of(input), options);
  Tensor output = make_empty(input, pooled_sizes(sizes_of(input), shape, options.kernel.size()));
  Tensor packed = make_bytes(input, packed_bytes(output.numel(), shape.bits));
  return {{shape, input.const_data_ptr(), type, output.mutable_data_ptr(),
           static_cast<uint8_t*>(packed.mutable_data_ptr())},
          output,
          packed};
}

struct MaxPoolBackwardCall {
  MaxPoolBackward args;
  Tensor output;
};

inline MaxPoolBackwardCall max_pool_backward_call(const Tensor& gradient, const Tensor& packed, const Ints& input_shape,
                                                  const PoolOptions& options) {
  const char* op = "max_pool_backward";
  const ElementType type = element_type(op, "gradient", gradient.scalar_type());
  const PoolShape shape = pool_shape(op, input_shape, options);
  require_sizes(op, "gradient", gradient, pooled_sizes(input_shape, shape, options.kernel.size()));
  require_bytes(op, "packed", packed, packed_bytes(gradient.numel(), shape.bits));
  require(packed.device() == gradient.device(), op, "gradient and packed must be on one device");
  Tensor output = make_empty(gradient, input_shape);
  return {{shape, gradient.const_data_ptr(), static_cast<const uint8_t*>(packed.const_data_ptr()), type,
           output.mutable_data_ptr()},
          output};
}

struct WindowIndexPackCall {
  WindowIndexPack args;
  Tensor packed;
  Tensor misfit;
};

inline WindowIndexPackCall window_index_pack_call(const Tensor& indices, const Ints& input_shape,
                                                  const PoolOptions& options) {
  const char* op = "window_index_pack";
  require(indices.scalar_type() == ScalarType::Long, op, "indices must be int64, as torch's max_pool returns them");
  const PoolShape shape = pool_shape(op, input_shape, options);
  require_sizes(op, "indices", indices, pooled_sizes(input_shape, shape, options.kernel.size()));
  Tensor packed = make_bytes(indices, packed_bytes(indices.numel(), shape.bits));
  Tensor misfit = make_misfit(indices);
  return {{shape, static_cast<const int64_t*>(indices.const_data_ptr()),
           static_cast<uint8_t*>(packed.mutable_data_ptr()), static_cast<int32_t*>(misfit.mutable_data_ptr())},
          packed,
          misfit};
}

struct WindowIndexUnpackCall {
  WindowIndexUnpack args;
  Tensor indices;
};

inline WindowIndexUnpackCall window_index_unpack_call(const Tensor& packed, const Ints& input_shape,
                                                      const PoolOptions& options) {
  const char* op = "window_index_unpack";
  const PoolShape shape = pool_shape(op, input_shape, options);
  require_bytes(op, "packed", packed, packed_bytes(shape.planes * plane_out(shape), shape.bits));
  Tensor indices = make_empty(packed, pooled_sizes(input_shape, shape, options.kernel.size()), ScalarType::Long);
  return {
      {shape, static_cast<const uint8_t*>(packed.const_data_ptr()), static_cast<int64_t*>(indices.mutable_data_ptr())},
      indices};
}

}  // namespace actcore::ops
