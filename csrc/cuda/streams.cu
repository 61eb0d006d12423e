// Streams of noise that a kernel writes, so that a replayed CUDA graph, which runs no host code, draws anew.
#include "codec/philox.h"
#include "cuda/kernels.h"

namespace actcore::cuda {
namespace {

__device__ unsigned long long replayed = 0;  // streams that captured graphs have drawn on this device

__global__ void write_kernel(int64_t* stream, uint64_t key, bool captured) {
  const uint64_t drawn = captured ? mixed(key ^ mixed(atomicAdd(&replayed, 1ull))) : key;
  *stream = static_cast<int64_t>(drawn);
}

}  // namespace

cudaError_t write_stream(int64_t* to, uint64_t key, cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error != cudaSuccess) return error;
  write_kernel<<<1, 1, 0, stream>>>(to, key, status != cudaStreamCaptureStatusNone);
  return cudaGetLastError();
}

}  // namespace actcore::cuda
