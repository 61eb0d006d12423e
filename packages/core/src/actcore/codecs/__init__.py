"""The storage forms: one file each."""

from actcore.codecs.bit_mask import BitMask, Positive
from actcore.codecs.float8 import Float8
from actcore.codecs.group_affine import GroupAffine
from actcore.codecs.group_affine_rows import GroupAffineRows
from actcore.codecs.narrow import Narrow
from actcore.codecs.offload import Offload
from actcore.codecs.raw import Raw

__all__ = ["BitMask", "Float8", "GroupAffine", "GroupAffineRows", "Narrow", "Offload", "Positive", "Raw"]
