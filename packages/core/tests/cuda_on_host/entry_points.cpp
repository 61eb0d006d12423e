// The kernels' launchers by their names, for ctypes. Arguments are as in cuda/kernels.h and cuda/fused.h, structs by their
// addresses, without the stream.
#include "cuda/fused.h"
#include "cuda/kernels.h"

using namespace actcore;

#define ACTCORE_ENTRY(NAME, ARGUMENTS) \
  extern "C" int NAME(const ARGUMENTS* args) { return cuda::NAME(*args, nullptr); }

#define ACTCORE_ROWS_ENTRY(NAME, ARGUMENTS)                                                      \
  extern "C" int NAME(const ARGUMENTS* args, const RowWidths* widths, int32_t* misfit) {         \
    return cuda::NAME(*args, *widths, misfit, nullptr);                                          \
  }

ACTCORE_ENTRY(group_affine_compress, GroupAffineCompress)
ACTCORE_ENTRY(group_affine_decompress, GroupAffineDecompress)
ACTCORE_ENTRY(float8_compress, Float8Compress)
ACTCORE_ENTRY(float8_decompress, Float8Decompress)
ACTCORE_ROWS_ENTRY(group_affine_rows_compress, GroupAffineCompress)
ACTCORE_ROWS_ENTRY(group_affine_rows_decompress, GroupAffineDecompress)
