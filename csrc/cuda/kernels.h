// The CUDA kernels: each call launches on `stream` and returns at once. No torch headers, no allocation, no
// synchronisation; launch errors are returned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codec/activation.h"
#include "codec/arguments.h"

namespace actcore::cuda {

cudaError_t group_affine_compress(const GroupAffineCompress& args, cudaStream_t stream);
cudaError_t group_affine_decompress(const GroupAffineDecompress& args, cudaStream_t stream);
cudaError_t group_affine_clamped_compress(const GroupAffineCompress& args, cudaStream_t stream);
cudaError_t group_affine_standardized_compress(const GroupAffineCompress& args, const Standardization& by,
                                               cudaStream_t stream);
cudaError_t group_affine_standardized_decompress(const GroupAffineDecompress& args, const Standardization& by,
                                                 cudaStream_t stream);

// Copies means, and writes the inverse of each factor, in the type that elements of `type` are computed in.
cudaError_t invert_factors(ElementType type, int64_t count, const void* means, const void* factors, void* found,
                           void* deviations, cudaStream_t stream);
cudaError_t group_affine_standardized_activation(const GroupAffineDecompress& args, const Activation& after,
                                                 cudaStream_t stream);

// How many numbers `parts` has room for.
int64_t moment_parts(const StandardizedShape& shape);
cudaError_t take_moments(const TakeMoments& args, cudaStream_t stream);

cudaError_t float8_compress(const Float8Compress& args, cudaStream_t stream);
cudaError_t float8_decompress(const Float8Decompress& args, cudaStream_t stream);

// `args` is of the whole tensor, its width and position unused. `misfit` is a device flag, zeroed by the caller, set to
// 1 where a row is not stored.
cudaError_t group_affine_rows_compress(const GroupAffineCompress& args, const RowWidths& widths, int32_t* misfit,
                                       cudaStream_t stream);
cudaError_t group_affine_rows_decompress(const GroupAffineDecompress& args, const RowWidths& widths, int32_t* misfit,
                                         cudaStream_t stream);

// One number to `to`: the key or, where the stream is captured, another in every replay.
cudaError_t write_stream(int64_t* to, uint64_t key, cudaStream_t stream);

// `excess`, `mismatch` and `misfit` are device flags, zeroed by the caller, set to 1 where an element does not fit.
cudaError_t pack_bits(const uint8_t* codes, int64_t numel, int bits, uint8_t* packed, int32_t* excess,
                      cudaStream_t stream);
cudaError_t unpack_bits(const uint8_t* packed, int64_t numel, int bits, uint8_t* codes, cudaStream_t stream);
cudaError_t bit_mask_compress(const BitMaskCompress& args, int32_t* mismatch, cudaStream_t stream);
cudaError_t bit_mask_decompress(const BitMaskDecompress& args, cudaStream_t stream);
cudaError_t positive_mask(const PositiveMask& args, cudaStream_t stream);
cudaError_t narrow_compress(const NarrowCompress& args, int32_t* misfit, cudaStream_t stream);
cudaError_t narrow_decompress(const NarrowDecompress& args, cudaStream_t stream);

}  // namespace actcore::cuda
