// The host side of every kernel: run-time types and widths to template arguments, and the launch itself.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "codec/arguments.h"
#include "codec/float16.h"

namespace actcore::cuda {

// Calls a function template's instance for a width, or an element type, that is only known at run time.
template <class Call>
cudaError_t with_bits(int bits, const Call& call) {
  switch (bits) {
    case 1: return call.template operator()<1>();
    case 2: return call.template operator()<2>();
    case 3: return call.template operator()<3>();
    case 4: return call.template operator()<4>();
    case 5: return call.template operator()<5>();
    case 6: return call.template operator()<6>();
    case 7: return call.template operator()<7>();
    case 8: return call.template operator()<8>();
    default: return cudaErrorInvalidValue;
  }
}

template <class Call>
cudaError_t with_type(ElementType type, const Call& call) {
  switch (type) {
    case ElementType::kFloat32: return call.template operator()<float>();
    case ElementType::kFloat64: return call.template operator()<double>();
    case ElementType::kFloat16: return call.template operator()<Half>();
    case ElementType::kBFloat16: return call.template operator()<BFloat16>();
  }
  return cudaErrorInvalidValue;
}

// The unsigned integer of `size` bytes, for elements that are only moved and compared.
template <class Call>
cudaError_t with_size(int size, const Call& call) {
  switch (size) {
    case 1: return call.template operator()<uint8_t>();
    case 2: return call.template operator()<uint16_t>();
    case 4: return call.template operator()<uint32_t>();
    case 8: return call.template operator()<uint64_t>();
    default: return cudaErrorInvalidValue;
  }
}

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
