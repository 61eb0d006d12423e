// The group-affine codec of elements as they are.
#include "cuda/group_affine_kernels.cuh"
#include "cuda/kernels.h"

namespace actcore::cuda {

cudaError_t group_affine_compress(const GroupAffineCompress& args, cudaStream_t stream) {
  return compress_elements(args, stream, []<class E>() { return Identity(); });
}

cudaError_t group_affine_decompress(const GroupAffineDecompress& args, cudaStream_t stream) {
  return decompress_elements(args, stream, []<class E>() { return Identity(); });
}

}  // namespace actcore::cuda
