"""Padding by the input's own values that keeps nothing: torch's keeps the input, of which it needs the shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from actcore.stored import Stored, announce, is_heard


def pad(x: Tensor, padding: Sequence[int], mode: str) -> Tensor:
    """``F.pad``. Under ``torch.compile`` it is torch's own: a gradient inside of a backward is not traced."""
    if torch.compiler.is_compiling():
        return F.pad(x, padding, mode)
    padded: Tensor = _Pad.apply(x, padding, mode)
    return padded


class _Pad(Function):
    """``F.pad`` in any mode. It is linear, so its gradient is the same wherever it is taken: at zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, padding: Sequence[int], mode: str) -> Tensor:
        ctx.like, ctx.arguments = (x.shape, x.stride()), (padding, mode)
        if is_heard(ctx) and mode in ("reflect", "replicate"):  # torch's keep their input
            announce(Stored(x, "pad", "input", "shape"))
        return F.pad(x, padding, mode)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            shape, strides = ctx.like
            at = torch.empty_strided(shape, strides, dtype=gradient.dtype, device=gradient.device).requires_grad_()
            padded = F.pad(at, *ctx.arguments)
            (found,) = torch.autograd.grad(padded, at, gradient, create_graph=twice)
        return found, None, None
