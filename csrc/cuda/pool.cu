// Max pooling on CUDA. Forward takes an output a thread; backward an element of the input, which sums the gradients of
// the windows that it won, in the order of the outputs: no atomics, and the bits of the CPU.
#include "codec/pool.h"

#include "codec/dispatch.h"
#include "cuda/fused.h"
#include "cuda/launch.cuh"

namespace actcore::cuda {
namespace {

constexpr int kThreads = 256;

// Packs one code a thread; each eighth thread writes the bytes of eight. Called by whole blocks.
__device__ void store_block_codes(int code, int bits, uint8_t* packed, int64_t first, int64_t numel) {
  alignas(8) __shared__ uint8_t codes[kThreads];
  codes[threadIdx.x] = static_cast<uint8_t>(code);
  __syncthreads();
  const int64_t begin = first + 8 * static_cast<int64_t>(threadIdx.x);
  if (threadIdx.x >= kThreads / 8 || begin >= numel) return;
  const uint64_t word = squeeze8(reinterpret_cast<const uint64_t*>(codes)[threadIdx.x], bits);
  const int bytes = static_cast<int>(packed_bytes(numel - begin < 8 ? numel - begin : 8, bits));
  for (int b = 0; b < bytes; ++b) packed[begin / 8 * bits + b] = static_cast<uint8_t>(word >> (8 * b));
}

template <class E>
__global__ void __launch_bounds__(kThreads) pool_kernel(MaxPool args, int64_t numel) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, i = first + threadIdx.x;
  int code = 0;
  if (i < numel) {
    const int64_t outs = plane_out(args.shape);
    const E* plane = static_cast<const E*>(args.input) + i / outs * plane_size(args.shape);
    const Maximum<E> found = window_maximum(args.shape, plane, place_of(i % outs, args.shape.out));
    static_cast<E*>(args.output)[i] = found.value;
    code = found.index;
  }
  store_block_codes(code, args.shape.bits, args.packed, first, numel);
}

// The outputs of one dimension whose windows may cover place `at`: first, ..., last.
struct Covering {
  int64_t first;
  int64_t last;
};

__device__ Covering covering(const PoolShape& shape, int d, int64_t at) {
  const int64_t from = at + shape.padding[d] - (shape.kernel[d] - 1) * shape.dilation[d];
  const int64_t last = (at + shape.padding[d]) / shape.stride[d];
  return {from > 0 ? (from + shape.stride[d] - 1) / shape.stride[d] : 0, last < shape.out[d] ? last : shape.out[d] - 1};
}

template <class E>
__global__ void __launch_bounds__(kThreads) backward_kernel(MaxPoolBackward args, int64_t numel) {
  using T = compute_t<E>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const PoolShape& shape = args.shape;
  const int64_t size = plane_size(shape), flat = i % size, base = i / size * plane_out(shape);
  const PoolPlace at = place_of(flat, shape.size);
  const Covering z = covering(shape, 0, at.at[0]), y = covering(shape, 1, at.at[1]), x = covering(shape, 2, at.at[2]);
  T sum = 0;
  PoolPlace out;
  for (out.at[0] = z.first; out.at[0] <= z.last; ++out.at[0]) {
    for (out.at[1] = y.first; out.at[1] <= y.last; ++out.at[1]) {
      for (out.at[2] = x.first; out.at[2] <= x.last; ++out.at[2]) {
        const int index = window_index(shape, out, flat);
        if (index < 0) continue;
        const int64_t o = base + (out.at[0] * shape.out[1] + out.at[1]) * shape.out[2] + out.at[2];
        if (code_at(args.packed, o, shape.bits) == index) sum += load(static_cast<const E*>(args.gradient)[o]);
      }
    }
  }
  store(static_cast<E*>(args.output) + i, sum);
}

__global__ void __launch_bounds__(kThreads) pack_kernel(WindowIndexPack args, int64_t numel) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads, i = first + threadIdx.x;
  int code = 0;
  if (i < numel) {
    const PoolPlace out = place_of(i % plane_out(args.shape), args.shape.out);
    code = window_index(args.shape, out, args.indices[i]);
    if (code < 0) {
      *args.misfit = 1;
      code = 0;
    }
  }
  store_block_codes(code, args.shape.bits, args.packed, first, numel);
}

__global__ void __launch_bounds__(kThreads) unpack_kernel(WindowIndexUnpack args, int64_t numel) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const PoolPlace out = place_of(i % plane_out(args.shape), args.shape.out);
  const PoolPlace place = window_place(args.shape, out, code_at(args.packed, i, args.shape.bits));
  args.indices[i] = inside(args.shape, place) ? flat_place(args.shape, place) : -1;
}

int64_t outputs(const PoolShape& shape) { return shape.planes * plane_out(shape); }

}  // namespace

cudaError_t max_pool(const MaxPool& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(pool_kernel<E>, blocks_for(numel, kThreads), kThreads, stream, args, numel);
  });
}

cudaError_t max_pool_backward(const MaxPoolBackward& args, cudaStream_t stream) {
  const int64_t numel = args.shape.planes * plane_size(args.shape);
  if (numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return launch(backward_kernel<E>, blocks_for(numel, kThreads), kThreads, stream, args, numel);
  });
}

cudaError_t window_index_pack(const WindowIndexPack& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return launch(pack_kernel, blocks_for(numel, kThreads), kThreads, stream, args, numel);
}

cudaError_t window_index_unpack(const WindowIndexUnpack& args, cudaStream_t stream) {
  const int64_t numel = outputs(args.shape);
  if (numel == 0) return cudaSuccess;
  return launch(unpack_kernel, blocks_for(numel, kThreads), kThreads, stream, args, numel);
}

}  // namespace actcore::cuda
