"""The operators again, slow and readable, in plain PyTorch on the CPU: the oracle that the kernels are held to.

Every function takes and returns what its namesake in ``torch.ops.actcore`` does, and agrees with it bit for bit.
"""

from actcore.reference.bits import pack_bits, unpack_bits
from actcore.reference.float8 import float8_compress, float8_decompress
from actcore.reference.group_affine import (
    group_affine_compress,
    group_affine_decompress,
    group_affine_rows_compress,
    group_affine_rows_decompress,
)
from actcore.reference.narrow import narrow_compress, narrow_decompress
from actcore.reference.philox import noise, philox

__all__ = [
    "float8_compress",
    "float8_decompress",
    "group_affine_compress",
    "group_affine_decompress",
    "group_affine_rows_compress",
    "group_affine_rows_decompress",
    "narrow_compress",
    "narrow_decompress",
    "noise",
    "pack_bits",
    "philox",
    "unpack_bits",
]
