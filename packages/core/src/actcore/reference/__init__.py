"""The operators again, slow and readable, in plain PyTorch on the CPU: the oracle that the kernels are held to.

Every function takes and returns what its namesake in ``torch.ops.actcore`` does, and agrees with it bit for bit.
"""

from actcore.reference.bits import pack_bits, unpack_bits
from actcore.reference.float8 import float8_compress, float8_decompress
from actcore.reference.group_affine import (
    group_affine_clamped_compress,
    group_affine_compress,
    group_affine_decompress,
    group_affine_rows_compress,
    group_affine_rows_decompress,
    group_affine_standardized_activation,
    group_affine_standardized_codes,
    group_affine_standardized_compress,
    group_affine_standardized_compress_given,
    group_affine_standardized_decompress,
    has_wide_group,
)
from actcore.reference.levels import level_codes
from actcore.reference.masked import dropout_mask, mask_backward, relu_mask
from actcore.reference.narrow import narrow_compress, narrow_decompress
from actcore.reference.philox import noise, philox
from actcore.reference.pool import max_pool, max_pool_backward, window_index_pack, window_index_unpack
from actcore.reference.stepwise import stepwise, stepwise_backward, stepwise_codes

__all__ = [
    "dropout_mask",
    "float8_compress",
    "float8_decompress",
    "group_affine_clamped_compress",
    "group_affine_compress",
    "group_affine_decompress",
    "group_affine_rows_compress",
    "group_affine_rows_decompress",
    "group_affine_standardized_activation",
    "group_affine_standardized_codes",
    "group_affine_standardized_compress",
    "group_affine_standardized_compress_given",
    "group_affine_standardized_decompress",
    "has_wide_group",
    "level_codes",
    "mask_backward",
    "max_pool",
    "max_pool_backward",
    "narrow_compress",
    "narrow_decompress",
    "noise",
    "pack_bits",
    "philox",
    "relu_mask",
    "stepwise",
    "stepwise_backward",
    "stepwise_codes",
    "unpack_bits",
    "window_index_pack",
    "window_index_unpack",
]
