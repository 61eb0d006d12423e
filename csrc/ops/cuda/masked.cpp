// ReLU and dropout that keep a bit an element, on CUDA.
#include "ops/masked.h"

#include <tuple>

#include "cuda/fused.h"
#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> relu_mask(const Tensor& input) {
  const auto call = relu_mask_call(input);
  launch_on(input, [&](cudaStream_t s) { return cuda::relu_mask(call.args, s); });
  return {call.output, call.mask};
}

std::tuple<Tensor, Tensor> dropout_mask(const Tensor& input, double p, int64_t seed, int64_t stream,
                                        std::optional<Tensor> draw) {
  const auto call = dropout_mask_call(input, p, seed, stream, draw);
  launch_on(input, [&](cudaStream_t s) { return cuda::dropout_mask(call.args, s); });
  return {call.output, call.mask};
}

Tensor mask_backward(const Tensor& gradient, const Tensor& mask, double scale) {
  const auto call = mask_backward_call(gradient, mask, scale);
  launch_on(gradient, [&](cudaStream_t s) { return cuda::mask_backward(call.args, s); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("relu_mask", TORCH_BOX(&relu_mask));
  m.impl("dropout_mask", TORCH_BOX(&dropout_mask));
  m.impl("mask_backward", TORCH_BOX(&mask_backward));
}
