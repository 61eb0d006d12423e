// How the CUDA operators launch: on torch's current stream, on the device of their input. They are a library of their
// own, loaded only where torch has CUDA: the symbols below are missing from a CPU-only torch.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "cuda/kernels.h"
#include "ops/checks.h"

namespace actcore::ops {

// Makes the tensor's device current, launches on torch's stream there, and reports a launch that failed.
template <class Launch>
void launch_on(const Tensor& tensor, const Launch& launch) {
  const int32_t device = tensor.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  void* stream = nullptr;
  ACTCORE_CHECK_TORCH(aoti_torch_get_current_cuda_stream(device, &stream));
  STD_CUDA_CHECK(launch(static_cast<cudaStream_t>(stream)));
}

// The same for a kernel that may set `misfit`, which is made 0 before it: torch's zero_ takes longer than to quantise a
// small tensor.
template <class Launch>
void launch_on(const Tensor& tensor, const Tensor& misfit, const Launch& launch) {
  launch_on(tensor, [&](cudaStream_t stream) {
    auto* flag = static_cast<int32_t*>(misfit.mutable_data_ptr());
    const cudaError_t error = cudaMemsetAsync(flag, 0, sizeof *flag, stream);
    return error != cudaSuccess ? error : launch(flag, stream);
  });
}

}  // namespace actcore::ops
