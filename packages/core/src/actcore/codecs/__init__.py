"""The storage forms: one file each."""

from actcore.codecs.bit_mask import BitMask, Positive
from actcore.codecs.group_affine import GroupAffine
from actcore.codecs.raw import Raw

__all__ = ["BitMask", "GroupAffine", "Positive", "Raw"]
