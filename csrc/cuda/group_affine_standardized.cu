// The group-affine codec of elements that are standardised on their way from memory, and made what they were on their way
// back.
#include "cuda/group_affine_kernels.cuh"
#include "cuda/kernels.h"
#include "cuda/standardize.cuh"

namespace actcore::cuda {

cudaError_t group_affine_standardized_compress(const GroupAffineCompress& args, const Standardization& by,
                                               cudaStream_t stream) {
  return compress_elements(args, stream,
                           [&]<class E>() { return Standardize<E, false>(by.shape, by.means, by.factors); });
}

cudaError_t group_affine_standardized_decompress(const GroupAffineDecompress& args, const Standardization& by,
                                                 cudaStream_t stream) {
  return decompress_elements(args, stream,
                             [&]<class E>() { return Standardize<E, true>(by.shape, by.means, by.factors); });
}

}  // namespace actcore::cuda
