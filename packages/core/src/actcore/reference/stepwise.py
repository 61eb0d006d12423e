"""The stepwise family, slow and readable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from actcore.reference.bits import pack_bits, unpack_bits

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "threshold": lambda x, threshold=0.0, value=0.0: functional.threshold(x, threshold, value),
    "hardsigmoid": functional.hardsigmoid,
    "hardtanh": functional.hardtanh,
    "relu6": functional.relu6,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "celu": functional.celu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": functional.hardswish,
    "logsigmoid": functional.logsigmoid,
    "mish": functional.mish,
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "tanh": torch.tanh,
    "tanhshrink": functional.tanhshrink,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "squared_relu": lambda x: torch.relu(x).square(),
}


def stepwise(
    x: Tensor, function: str, parameters: Sequence[float], boundaries: Tensor, bits: int
) -> tuple[Tensor, Tensor]:
    """torch's own function, and the codes."""
    return FUNCTIONS[function](x, *parameters), stepwise_codes(x, boundaries, bits)


def stepwise_codes(x: Tensor, boundaries: Tensor, bits: int) -> Tensor:
    """How many boundaries are not above x; all of them for NaN."""
    above = x.reshape(-1, 1).to(boundaries.dtype) < boundaries
    return pack_bits((~above).sum(1).to(torch.uint8), bits)


def stepwise_backward(gradient: Tensor, codes: Tensor, levels: Tensor, bits: int) -> Tensor:
    """The gradient times its code's level; NaN for a code that has none."""
    table = torch.cat([levels, levels.new_full((2**bits - len(levels),), torch.nan)])
    index = unpack_bits(codes, bits, gradient.numel()).long().view(gradient.shape)
    return (gradient.to(levels.dtype) * table[index]).to(gradient.dtype)
