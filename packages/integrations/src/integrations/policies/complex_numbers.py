"""``ComplexGroupAffine``: complex numbers, stored as their real and imaginary parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actcore import FLOATS, Compressed, GroupAffine, Layout, Raw
from integrations.policies.needs import Need

LINEAR_NEEDS = (Need.LINEAR, Need.PRODUCT, Need.MOMENT)
"""Needs for which a complex tensor may be rounded: its parts enter a gradient linearly, as real numbers do."""


def is_complex(dtype: torch.dtype) -> bool:
    """Return whether a tensor of this dtype has real and imaginary parts that ``GroupAffine`` stores."""
    return dtype.is_complex and dtype.to_real() in FLOATS


@dataclass(frozen=True)
class ComplexGroupAffine(GroupAffine):
    """``GroupAffine`` on the real and imaginary parts of complex numbers, in the order of memory.

    A group of ``group_size`` elements has both parts of half as many numbers. A lazily conjugated tensor comes back
    lazily conjugated.

    Attributes:
        conjugated: whether the parts are those of the conjugates.
    """

    conjugated: bool = False

    def __str__(self) -> str:
        return f"{self.of_parts!r}, real and imaginary parts"

    @property
    def of_parts(self) -> GroupAffine:
        """The codec of the real and imaginary parts."""
        return GroupAffine(self.bits, self.group_size, self.rounding)

    def stored_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """Bytes of the payload for ``numel`` complex numbers of ``dtype``."""
        return super().stored_bytes(2 * numel, dtype.to_real())

    def compress(self, tensor: Tensor, *, seed: Any = 0, stream: Any = 0) -> Compressed:
        """``Complex[Tensor, "..."] -> (codes, bounds)``, as ``GroupAffine`` has them of ``view_as_real(tensor)``."""
        tensor = tensor.detach()
        conjugated = tensor.is_conj()
        parts = torch.view_as_real(tensor.conj() if conjugated else tensor)
        stored = self.of_parts.compress(parts, seed=seed, stream=stream)
        if isinstance(stored.codec, Raw):
            return Raw().compress(tensor.clone())
        codec = type(self)(self.bits, self.group_size, self.rounding, conjugated)
        return Compressed(codec, stored.payload, Layout.of(tensor), tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, with the codec's rounding error in both parts."""
        stored = Compressed(
            self.of_parts, compressed.payload, layout_of_parts(compressed.layout), compressed.dtype.to_real()
        )
        found = torch.view_as_complex(self.of_parts.decompress(stored))
        return found.conj() if self.conjugated else found


def layout_of_parts(layout: Layout) -> Layout:
    """The layout of ``view_as_real(tensor)``, from the tensor's."""
    return Layout((*layout.shape, 2), (*(2 * step for step in layout.strides), 1))
