"""What the vmap rules share: one call where every sample's bits fill whole bytes, one call a sample otherwise."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor


def first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension in front, in contiguous memory; a tensor that has none is repeated."""
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.contiguous()


def map_forward(
    call: Callable[[Tensor], Any], size: int, codes: int, x: Tensor, guarded: bool = False
) -> tuple[Any, tuple[int, int]]:
    """``codes`` is their number in a sample; a guard's bytes lie behind those of each."""
    if codes % 8 == 0 and codes > 0 and not guarded:
        output, packed = call(x)
        return (output, packed.view(size, -1)), (0, 0)
    outputs, packs = zip(*(call(sample) for sample in x.unbind(0)), strict=True)
    return (torch.stack(outputs), torch.stack(packs)), (0, 0)


def map_backward(
    one: Callable[[Tensor, Tensor], Any],
    every: Callable[[Tensor, Tensor], Any],
    gradient: Tensor,
    packed: Tensor,
    guarded: bool = False,
) -> tuple[Any, int]:
    """``one`` takes a sample's gradient and codes, ``every`` all of them."""
    codes = prod(gradient.shape[1:])
    if codes % 8 == 0 and codes > 0 and not guarded:
        return every(gradient, packed.view(-1)), 0
    return torch.stack([one(*pair) for pair in zip(gradient.unbind(0), packed.unbind(0), strict=True)]), 0


def require_shared(name: str, dim: int | None) -> None:
    """Raises ``ValueError`` for a table that differs among the samples."""
    if dim is not None:
        raise ValueError(
            f"{name} must be the same for the whole batch of vmap, got one for each sample; use in_dims=None"
        )
