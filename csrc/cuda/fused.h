// The CUDA kernels of the fused operators; see cuda/kernels.h.
#pragma once

#include <cuda_runtime_api.h>

#include "codec/levels.h"
#include "codec/masked.h"
#include "codec/pool.h"
#include "codec/stepwise.h"

namespace actcore::cuda {

cudaError_t relu_mask(const ReluMask& args, cudaStream_t stream);
cudaError_t dropout_mask(const DropoutMask& args, cudaStream_t stream);
cudaError_t mask_backward(const MaskBackward& args, cudaStream_t stream);

cudaError_t stepwise(const Stepwise& args, cudaStream_t stream);
cudaError_t stepwise_codes(const StepwiseCodes& args, cudaStream_t stream);
cudaError_t stepwise_backward(const StepwiseBackward& args, cudaStream_t stream);

cudaError_t level_codes(const LevelCodes& args, cudaStream_t stream);

cudaError_t max_pool(const MaxPool& args, cudaStream_t stream);
cudaError_t max_pool_backward(const MaxPoolBackward& args, cudaStream_t stream);
cudaError_t window_index_pack(const WindowIndexPack& args, cudaStream_t stream);
cudaError_t window_index_unpack(const WindowIndexUnpack& args, cudaStream_t stream);

}  // namespace actcore::cuda
