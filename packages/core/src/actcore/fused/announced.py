"""What dropout and pooling announce: which tensors torch's own would keep."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from actcore.stored import Absent, Stored, announce, is_heard, subject_of


def announce_dropout(ctx: Any, given: Tensor, p: float, mask: Tensor) -> None:
    """Announces a dropout. torch keeps what it multiplies with: numbers on the CPU, truth values elsewhere."""
    if not is_heard(ctx):
        return
    x, operator = subject_of(given, "dropout")
    dtype = x.dtype if x.device.type == "cpu" else torch.bool
    # With a probability of 1 torch multiplies with one zero.
    announce(Stored(Absent.like(x, () if p == 1 else None, dtype), operator, "mask", "mask of 1 bit", (mask,)))


def announce_max_pool(ctx: Any, given: Tensor, kernel: Sequence[int], output: Tensor, places: Tensor) -> None:
    """Announces a max pooling. torch keeps the index of each maximum, and the input for its shape."""
    if not is_heard(ctx):
        return
    x, operator = subject_of(given, f"max_pool{len(kernel)}d")
    bits = max(1, (prod(kernel) - 1).bit_length())
    indices = Absent.like(output, dtype=torch.int64)
    announce(
        Stored(x, operator, "input", "shape"),
        Stored(indices, operator, "internal", f"places of {bits} bit{'s' * (bits > 1)}", (places,)),
    )
