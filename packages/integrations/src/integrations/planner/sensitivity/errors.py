"""``Error``: what one tensor's rounding adds to the gradients that a node is about to get."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import actcore
from actcore import Compressed, GroupAffine

# An error waits for each node on its way down, and with it, at worst, those of all tensors that as many nodes above
# have saved: dozens of tensors of an activation's size, more than everything else in the measured step. In 8 bits they
# take a quarter. Only their energy is used, to which that adds 1e-4 at most where elements are spread as those of
# activations' gradients are.
_CODEC = GroupAffine(8)
_SMALL = 4096  # a copy of so few elements costs less than its book-keeping

_ROUNDED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Error:
    """The error that one tensor's rounding makes in the gradients that a node is about to get.

    Args:
        hops: how many nodes it has passed that saved something.
    """

    def __init__(self, hops: int) -> None:
        self.hops = hops
        self._parts: dict[int, Tensor | Compressed] = {}  # by the place among the node's gradients

    def add(self, at: int, part: Tensor, hops: int) -> None:
        """Adds an error in one of the gradients.

        Args:
            at: its place among them.
            part: the error, of the gradient's shape.
            hops: how many nodes this part has passed; the most of all parts counts.
        """
        known = self.part(at)
        self._parts[at] = _packed(part if known is None else known + part)
        self.hops = max(self.hops, hops)

    def part(self, at: int) -> Tensor | None:
        """The error in one of the gradients; ``None`` if it has none."""
        part = self._parts.get(at)
        return actcore.decompress(part) if isinstance(part, Compressed) else part

    def parts(self) -> Iterator[Tensor]:
        """The errors that there are, one after another."""
        for at in self._parts:
            part = self.part(at)
            assert part is not None
            yield part


def _packed(part: Tensor) -> Tensor | Compressed:
    if part.layout is not torch.strided or part.dtype not in _ROUNDED or part.numel() <= _SMALL:
        return part
    return actcore.compress(part, _CODEC)
