"""``Error``: what one tensor's rounding adds to the gradients that a node is about to get."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import actcore
from actcore import Compressed, GroupAffine

# An error waits for each node down its way, and with it, at the worst, those of all tensors that were saved by as many
# nodes above: dozens of tensors of an activation's size, which were more than all else in the step that is measured.
# In 8 bits they take a quarter; to their energy, which is all that is asked of them, that adds 1e-4 at most for what is
# spread as activations' gradients are.
_CODEC = GroupAffine(8)
_SMALL = 4096  # elements up to which a copy costs less than its book-keeping

_ROUNDED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Error:
    """The error that one tensor's rounding makes in the gradients that a node is about to get.

    Args:
        hops: nodes that it has passed, of those that saved something.
    """

    def __init__(self, hops: int) -> None:
        self.hops = hops
        self._parts: dict[int, Tensor | Compressed] = {}  # by the place among the node's gradients

    def add(self, at: int, part: Tensor, hops: int) -> None:
        """Adds an error in one of the gradients.

        Args:
            at: its place among them.
            part: the error, of the gradient's shape.
            hops: that this part has passed; the most of all parts counts.
        """
        known = self.part(at)
        self._parts[at] = _packed(part if known is None else known + part)
        self.hops = max(self.hops, hops)

    def part(self, at: int) -> Tensor | None:
        """The error in one of the gradients; ``None`` where there is none."""
        part = self._parts.get(at)
        return actcore.decompress(part) if isinstance(part, Compressed) else part

    def parts(self) -> Iterator[Tensor]:
        """Those that there are, one after another."""
        for at in self._parts:
            part = self.part(at)
            assert part is not None
            yield part


def _packed(part: Tensor) -> Tensor | Compressed:
    if part.layout is not torch.strided or part.dtype not in _ROUNDED or part.numel() <= _SMALL:
        return part
    return actcore.compress(part, _CODEC)
