"""Return zeros, not ``None``, as second derivatives of piecewise linear functions, as torch does.

Optimizers skip a parameter whose gradient is ``None``, including its momentum and weight decay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def note_origin(ctx: Any, x: Tensor) -> None:
    """Store the history of an input on ``ctx`` in a Function's forward, without its memory.

    ``torch.func`` makes zeros by itself, and compiled code has no double backward: there, nothing is stored.
    """
    ctx.origin = None
    if x.requires_grad and not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None:
        with torch.enable_grad():
            # No elements, so no memory; a copy, since a view would keep x. In torch 2.10 and 2.11 narrow_copy has no
            # derivative.
            ctx.origin = (x if x.dim() else x.unsqueeze(0)).narrow(0, 0, 0).clone()


def with_origin(ctx: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of the input that ``note_origin`` stored. If autograd builds a graph of this backward, the
    gradient's derivative by that input is zeros."""
    origin: Tensor | None = ctx.origin
    if origin is None or not torch.is_grad_enabled():
        return gradient
    return _Flat.apply(gradient, origin)  # type: ignore[no-any-return]


class _Flat(Function):
    """Return the first argument, as a function of both arguments that is constant in the second."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, origin: Tensor) -> Tensor:
        ctx.shape = origin.shape
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return gradient, gradient.new_zeros(ctx.shape)
