// ReLU and dropout that keep a bit an element, on the CPU.
#include <tuple>

#include "cpu/fused.h"
#include "ops/cpu/share.h"
#include "ops/masked.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> relu_mask(const Tensor& input) {
  const auto call = relu_mask_call(input);
  expect_all_written(call.output, input.numel() * static_cast<int64_t>(input.element_size()));
  const auto& kernels = cpu::fused_kernels();
  share_elements(call.args.numel, [&](int64_t begin, int64_t end) { kernels.relu_mask(call.args, begin, end); });
  return {call.output, call.mask};
}

std::tuple<Tensor, Tensor> dropout_mask(const Tensor& input, double p, int64_t seed, int64_t stream,
                                        std::optional<Tensor> draw) {
  const auto call = dropout_mask_call(input, p, seed, stream, draw);
  expect_all_written(call.output, input.numel() * static_cast<int64_t>(input.element_size()));
  const auto& kernels = cpu::fused_kernels();
  share_elements(call.args.numel, [&](int64_t begin, int64_t end) { kernels.dropout_mask(call.args, begin, end); });
  return {call.output, call.mask};
}

Tensor mask_backward(const Tensor& gradient, const Tensor& mask, double scale) {
  const auto call = mask_backward_call(gradient, mask, scale);
  expect_all_written(call.output, gradient.numel() * static_cast<int64_t>(gradient.element_size()));
  const auto& kernels = cpu::fused_kernels();
  share_elements(call.args.numel, [&](int64_t begin, int64_t end) { kernels.mask_backward(call.args, begin, end); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("relu_mask", TORCH_BOX(&relu_mask));
  m.impl("dropout_mask", TORCH_BOX(&dropout_mask));
  m.impl("mask_backward", TORCH_BOX(&mask_backward));
}
