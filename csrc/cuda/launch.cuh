// The host side of every kernel: its launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace actcore::cuda {

// Blocks that cover `units` > 0 where each covers `block`. The grid's 2^31 blocks are out of memory's reach.
inline int64_t blocks_for(int64_t units, int64_t block) { return (units - 1) / block + 1; }

// Unlike <<<...>>> with cudaGetLastError, this neither reports nor clears an older error.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t stream,
                   Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace actcore::cuda
