// ReLU and dropout that keep a bit an element: checks, output tensors, and what the kernels are told.
#pragma once

#include <optional>

#include "codec/masked.h"
#include "ops/noise.h"
#include "ops/outputs.h"

namespace actcore::ops {

template <class Args>
struct MaskedCall {
  Args args;
  Tensor output;
  Tensor mask;
};

inline MaskedCall<ReluMask> relu_mask_call(const Tensor& input) {
  const char* op = "relu_mask";
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  Tensor output = make_like(input);
  Tensor mask = make_bytes(input, packed_bytes(input.numel(), 1));
  return {{input.const_data_ptr(), type, input.numel(), output.mutable_data_ptr(),
           static_cast<uint8_t*>(mask.mutable_data_ptr())},
          output,
          mask};
}

inline MaskedCall<DropoutMask> dropout_mask_call(const Tensor& input, double p, int64_t seed, int64_t stream,
                                                 const std::optional<Tensor>& draw) {
  const char* op = "dropout_mask";
  require_contiguous(op, "input", input);
  const ElementType type = element_type(op, "input", input.scalar_type());
  require(p >= 0 && p <= 1, op, "p must be a probability from 0 to 1, got ", p);
  const int64_t* added = draw_of(op, input, draw);
  const uint32_t threshold = dropout_threshold(p);
  Tensor output = make_like(input);
  Tensor mask = make_bytes(input, packed_bytes(input.numel(), 1));
  return {
      {input.const_data_ptr(), type, input.numel(), threshold, dropout_scale(threshold), static_cast<uint64_t>(seed),
       static_cast<uint64_t>(stream), added, output.mutable_data_ptr(), static_cast<uint8_t*>(mask.mutable_data_ptr())},
      output,
      mask};
}

struct MaskBackwardCall {
  MaskBackward args;
  Tensor output;
};

inline MaskBackwardCall mask_backward_call(const Tensor& gradient, const Tensor& mask, double scale) {
  const char* op = "mask_backward";
  require_contiguous(op, "gradient", gradient);
  const ElementType type = element_type(op, "gradient", gradient.scalar_type());
  require_bytes(op, "mask", mask, packed_bytes(gradient.numel(), 1));
  require(mask.device() == gradient.device(), op, "gradient and mask must be on one device");
  Tensor output = make_like(gradient);
  return {{gradient.const_data_ptr(), static_cast<const uint8_t*>(mask.const_data_ptr()), type, gradient.numel(), scale,
           output.mutable_data_ptr()},
          output};
}

}  // namespace actcore::ops
