// The stepwise family on CUDA.
#include "ops/stepwise.h"

#include <tuple>

#include "cuda/fused.h"
#include "ops/cuda/launch.h"

namespace actcore::ops {
namespace {

std::tuple<Tensor, Tensor> stepwise(const Tensor& input, std::string function, std::vector<double> parameters,
                                    const Tensor& boundaries, int64_t bits, bool even, std::string guard) {
  const auto call = stepwise_call(input, function, parameters, boundaries, bits, even, guard);
  launch_on(input, [&](cudaStream_t s) { return cuda::stepwise(call.args, s); });
  return {call.output, call.codes};
}

Tensor stepwise_codes(const Tensor& input, const Tensor& boundaries, int64_t bits, bool even, std::string guard) {
  const auto call = stepwise_codes_call("stepwise_codes", input, boundaries, bits, even, guard);
  launch_on(input, [&](cudaStream_t s) { return cuda::stepwise_codes(call.args, s); });
  return call.codes;
}

Tensor stepwise_backward(const Tensor& gradient, const Tensor& codes, const Tensor& levels, int64_t bits,
                         bool guarded) {
  const auto call = stepwise_backward_call(gradient, codes, levels, bits, guarded);
  launch_on(gradient, [&](cudaStream_t s) { return cuda::stepwise_backward(call.args, s); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CUDA, m) {
  using namespace actcore::ops;
  m.impl("stepwise", TORCH_BOX(&stepwise));
  m.impl("stepwise_codes", TORCH_BOX(&stepwise_codes));
  m.impl("stepwise_backward", TORCH_BOX(&stepwise_backward));
}
