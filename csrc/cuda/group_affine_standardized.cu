// The group-affine codec of elements that are standardised on their way from memory, and made what they were on their way
// back.
#include <type_traits>

#include "cuda/group_affine_kernels.cuh"
#include "cuda/kernels.h"
#include "cuda/standardize.cuh"

namespace actcore::cuda {

cudaError_t group_affine_standardized_compress(const GroupAffineCompress& args, const Standardization& by,
                                               cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_standardize<E, false>(by, args.group_size <= kTile, [&]<class Made>(const Made& made) {
      if constexpr (std::is_same_v<Made, Standardize<E, false>>) {
        return compress_with<E>(args, made, stream);
      } else {
        return with_bits(args.bits, [&]<int bits>() { return compress_tiles<E, bits>(args, made, stream); });
      }
    });
  });
}

cudaError_t group_affine_standardized_decompress(const GroupAffineDecompress& args, const Standardization& by,
                                                 cudaStream_t stream) {
  if (args.numel == 0) return cudaSuccess;
  return with_type(args.type, [&]<class E>() {
    return with_standardize<E, true>(by, true,
                                     [&](const auto& made) { return decompress_with<E>(args, made, stream); });
  });
}

namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    invert_kernel(int64_t count, const T* means, const T* factors, T* found, T* deviations) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) found[i] = means[i], deviations[i] = T(1) / factors[i];
}

}  // namespace

cudaError_t invert_factors(ElementType type, int64_t count, const void* means, const void* factors, void* found,
                           void* deviations, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_type(type, [&]<class E>() {
    using T = compute_t<E>;
    return launch(invert_kernel<T>, blocks_for(count, kThreads), kThreads, stream, count, static_cast<const T*>(means),
                  static_cast<const T*>(factors), static_cast<T*>(found), static_cast<T*>(deviations));
  });
}

}  // namespace actcore::cuda
