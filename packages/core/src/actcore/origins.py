"""Second derivatives of functions that are linear in pieces: zeros for their input, as torch has them, and not none.

The optimizers tell the two apart: a parameter without a gradient is left out of a step, momentum and decay included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def note_origin(ctx: Any, x: Tensor) -> None:
    """Notes in a Function's forward where its input comes from: the history of the input, and none of its memory.

    ``torch.func`` makes zeros by itself, and compiled code has no double backward.
    """
    ctx.origin = None
    if x.requires_grad and not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None:
        with torch.enable_grad():
            ctx.origin = torch.narrow_copy(x if x.dim() else x.unsqueeze(0), 0, 0, 0)  # no elements, so no memory


def with_origin(ctx: Any, gradient: Tensor) -> Tensor:
    """The gradient that a Function's backward returns for the input that it has noted, with zeros for that input as its
    own derivative where autograd builds a graph of this backward."""
    origin: Tensor | None = ctx.origin
    if origin is None or not torch.is_grad_enabled():
        return gradient
    return _Flat.apply(gradient, origin)  # type: ignore[no-any-return]


class _Flat(Function):
    """The first argument, as a function of both that does not change with the second."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, origin: Tensor) -> Tensor:
        ctx.shape = origin.shape
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return gradient, gradient.new_zeros(ctx.shape)
