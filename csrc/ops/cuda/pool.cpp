// Max pooling on CUDA.
#include "ops/pool.h"

#include <tuple>

#include "cuda/fused.h"
#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> max_pool(const Tensor& input, Ints kernel, Ints stride, Ints padding, Ints dilation,
                                    bool ceil_mode) {
  const auto call = max_pool_call(input, {kernel, stride, padding, dilation, ceil_mode});
  launch_on(input, [&](cudaStream_t s) { return cuda::max_pool(call.args, s); });
  return {call.output, call.packed};
}

Tensor max_pool_backward(const Tensor& gradient, const Tensor& packed, Ints input_shape, Ints kernel, Ints stride,
                         Ints padding, Ints dilation, bool ceil_mode) {
  const auto call =
      max_pool_backward_call(gradient, packed, input_shape, {kernel, stride, padding, dilation, ceil_mode});
  launch_on(gradient, [&](cudaStream_t s) { return cuda::max_pool_backward(call.args, s); });
  return call.output;
}

std::tuple<Tensor, Tensor> window_index_pack(const Tensor& indices, Ints input_shape, Ints kernel, Ints stride,
                                             Ints padding, Ints dilation, bool ceil_mode) {
  const auto call = window_index_pack_call(indices, input_shape, {kernel, stride, padding, dilation, ceil_mode});
  launch_on(indices, call.misfit, [&](int32_t*, cudaStream_t s) { return cuda::window_index_pack(call.args, s); });
  return {call.packed, call.misfit};
}

Tensor window_index_unpack(const Tensor& packed, Ints input_shape, Ints kernel, Ints stride, Ints padding,
                           Ints dilation, bool ceil_mode) {
  const auto call = window_index_unpack_call(packed, input_shape, {kernel, stride, padding, dilation, ceil_mode});
  launch_on(packed, [&](cudaStream_t s) { return cuda::window_index_unpack(call.args, s); });
  return call.indices;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("max_pool", TORCH_BOX(&max_pool));
  m.impl("max_pool_backward", TORCH_BOX(&max_pool_backward));
  m.impl("window_index_pack", TORCH_BOX(&window_index_pack));
  m.impl("window_index_unpack", TORCH_BOX(&window_index_unpack));
}
