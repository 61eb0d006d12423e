// Max pooling on the CPU.
#include <atomic>
#include <tuple>

#include "cpu/fused.h"
#include "ops/cpu/share.h"
#include "ops/pool.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> max_pool(const Tensor& input, Ints kernel, Ints stride, Ints padding, Ints dilation,
                                    bool ceil_mode) {
  const auto call = max_pool_call(input, {kernel, stride, padding, dilation, ceil_mode});
  const auto& kernels = cpu::fused_kernels();
  share_elements(call.output.numel(), [&](int64_t begin, int64_t end) { kernels.max_pool(call.args, begin, end); });
  return {call.output, call.packed};
}

Tensor max_pool_backward(const Tensor& gradient, const Tensor& packed, Ints input_shape, Ints kernel, Ints stride,
                         Ints padding, Ints dilation, bool ceil_mode) {
  const auto call =
      max_pool_backward_call(gradient, packed, input_shape, {kernel, stride, padding, dilation, ceil_mode});
  const auto& kernels = cpu::fused_kernels();
  share_groups(call.args.shape.planes, plane_size(call.args.shape),
               [&](int64_t begin, int64_t end) { kernels.max_pool_backward(call.args, begin, end); });
  return call.output;
}

std::tuple<Tensor, Tensor> window_index_pack(const Tensor& indices, Ints input_shape, Ints kernel, Ints stride,
                                             Ints padding, Ints dilation, bool ceil_mode) {
  const auto call = window_index_pack_call(indices, input_shape, {kernel, stride, padding, dilation, ceil_mode});
  const auto& kernels = cpu::fused_kernels();
  std::atomic<bool> fits = true;
  share_elements(indices.numel(), [&](int64_t begin, int64_t end) {
    if (!kernels.window_index_pack(call.args, begin, end)) fits = false;
  });
  *call.args.misfit = !fits;
  return {call.packed, call.misfit};
}

Tensor window_index_unpack(const Tensor& packed, Ints input_shape, Ints kernel, Ints stride, Ints padding,
                           Ints dilation, bool ceil_mode) {
  const auto call = window_index_unpack_call(packed, input_shape, {kernel, stride, padding, dilation, ceil_mode});
  const auto& kernels = cpu::fused_kernels();
  share_elements(call.indices.numel(),
                 [&](int64_t begin, int64_t end) { kernels.window_index_unpack(call.args, begin, end); });
  return call.indices;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("max_pool", TORCH_BOX(&max_pool));
  m.impl("max_pool_backward", TORCH_BOX(&max_pool_backward));
  m.impl("window_index_pack", TORCH_BOX(&window_index_pack));
  m.impl("window_index_unpack", TORCH_BOX(&window_index_unpack));
}
