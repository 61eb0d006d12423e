// The kernels' launchers by their names, for ctypes. Arguments are as in cuda/kernels.h and cuda/fused.h, structs by their
// addresses, without the stream.
#include "cuda/fused.h"
#include "cuda/kernels.h"

using namespace actcore;

#define ACTCORE_ENTRY(NAME, ARGUMENTS) \
  extern "C" int NAME(const ARGUMENTS* args) { return cuda::NAME(*args, nullptr); }

#define ACTCORE_ROWS_ENTRY(NAME, ARGUMENTS)                                              \
  extern "C" int NAME(const ARGUMENTS* args, const RowWidths* widths, int32_t* misfit) { \
    return cuda::NAME(*args, *widths, misfit, nullptr);                                  \
  }

#define ACTCORE_STANDARDIZED_ENTRY(NAME, ARGUMENTS) \
  extern "C" int NAME(const ARGUMENTS* args, const Standardization* by) { return cuda::NAME(*args, *by, nullptr); }

ACTCORE_ENTRY(group_affine_compress, GroupAffineCompress)
ACTCORE_ENTRY(group_affine_decompress, GroupAffineDecompress)
ACTCORE_ENTRY(group_affine_clamped_compress, GroupAffineCompress)
ACTCORE_STANDARDIZED_ENTRY(group_affine_standardized_compress, GroupAffineCompress)
ACTCORE_STANDARDIZED_ENTRY(group_affine_standardized_decompress, GroupAffineDecompress)
ACTCORE_ENTRY(take_moments, TakeMoments)
extern "C" int group_affine_standardized_activation(const GroupAffineDecompress* args, const Activation* after) {
  return cuda::group_affine_standardized_activation(*args, *after, nullptr);
}
extern "C" int invert_factors(int64_t type, int64_t count, const void* means, const void* factors, void* found,
                              void* deviations) {
  return cuda::invert_factors(static_cast<ElementType>(type), count, means, factors, found, deviations, nullptr);
}
ACTCORE_ENTRY(float8_compress, Float8Compress)
ACTCORE_ENTRY(float8_decompress, Float8Decompress)
ACTCORE_ROWS_ENTRY(group_affine_rows_compress, GroupAffineCompress)
ACTCORE_ROWS_ENTRY(group_affine_rows_decompress, GroupAffineDecompress)
ACTCORE_ENTRY(bit_mask_decompress, BitMaskDecompress)
ACTCORE_ENTRY(positive_mask, PositiveMask)
ACTCORE_ENTRY(narrow_decompress, NarrowDecompress)
ACTCORE_ENTRY(relu_mask, ReluMask)
ACTCORE_ENTRY(mask_backward, MaskBackward)
ACTCORE_ENTRY(dropout_mask, DropoutMask)
ACTCORE_ENTRY(max_pool, MaxPool)
ACTCORE_ENTRY(max_pool_backward, MaxPoolBackward)
ACTCORE_ENTRY(window_index_pack, WindowIndexPack)
ACTCORE_ENTRY(window_index_unpack, WindowIndexUnpack)
ACTCORE_ENTRY(stepwise_codes, StepwiseCodes)
ACTCORE_ENTRY(stepwise_backward, StepwiseBackward)
ACTCORE_ENTRY(level_codes, LevelCodes)

#define ACTCORE_FLAGGED_ENTRY(NAME, ARGUMENTS) \
  extern "C" int NAME(const ARGUMENTS* args, int32_t* misfit) { return cuda::NAME(*args, misfit, nullptr); }

ACTCORE_FLAGGED_ENTRY(bit_mask_compress, BitMaskCompress)
ACTCORE_FLAGGED_ENTRY(narrow_compress, NarrowCompress)

extern "C" int moment_parts(const StandardizedShape* shape, int64_t* count) {
  *count = cuda::moment_parts(*shape);
  return cudaSuccess;
}
extern "C" int pack_bits(const uint8_t* codes, int64_t numel, int64_t bits, uint8_t* packed, int32_t* excess) {
  return cuda::pack_bits(codes, numel, static_cast<int>(bits), packed, excess, nullptr);
}
extern "C" int unpack_bits(const uint8_t* packed, int64_t numel, int64_t bits, uint8_t* codes) {
  return cuda::unpack_bits(packed, numel, static_cast<int>(bits), codes, nullptr);
}
