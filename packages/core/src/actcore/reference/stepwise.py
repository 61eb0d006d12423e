"""The stepwise family, slow and readable."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actcore.fused.guards import STRETCH
from actcore.ops import packed_bytes
from actcore.pointwise import FUNCTIONS
from actcore.reference.bits import pack_bits, unpack_bits


def stepwise(
    x: Tensor,
    function: str,
    parameters: Sequence[float],
    boundaries: Tensor,
    bits: int,
    even: bool = False,
    guard: str = "none",
) -> tuple[Tensor, Tensor]:
    """torch's own function, and the codes."""
    return FUNCTIONS[function](x, *parameters), stepwise_codes(x, boundaries, bits, even, guard)


def stepwise_codes(x: Tensor, boundaries: Tensor, bits: int, even: bool = False, guard: str = "none") -> Tensor:
    """How many boundaries are not above x, or its magnitude; all of them for NaN. Behind the codes, the guard."""
    compared = x.abs() if even else x
    above = compared.reshape(-1, 1).to(boundaries.dtype) < boundaries
    return torch.cat([pack_bits((~above).sum(1).to(torch.uint8), bits), guard_bytes(guard, x)])


def guard_bytes(guard: str, *tensors: Tensor) -> Tensor:
    """1 for each stretch in which one of the tensors has what the guard looks for."""
    if guard == "none":
        return torch.empty(0, dtype=torch.uint8)
    found = torch.zeros(tensors[0].numel(), dtype=torch.bool)
    for tensor in tensors:
        found |= (tensor.isnan() if guard == "nan" else ~tensor.isfinite()).view(-1)
    return torch.tensor([stretch.any() for stretch in found.split(STRETCH) if len(stretch)], dtype=torch.uint8)


def stepwise_backward(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int, guarded: bool = False) -> Tensor:
    """The gradient times its code's level; NaN for a code that has none, and where the guard says so."""
    table = torch.cat([levels, levels.new_full((2**bits - len(levels),), torch.nan)])
    packed = codes[: packed_bytes(gradient.numel(), bits)]
    index = unpack_bits(packed, bits, gradient.numel()).long().view(gradient.shape)
    output = (gradient.to(levels.dtype) * table[index]).to(gradient.dtype)
    if guarded:
        lost = codes[len(packed) :].bool().repeat_interleave(STRETCH)[: gradient.numel()]
        output = output.masked_fill(lost.view(gradient.shape), torch.nan)
    return output
