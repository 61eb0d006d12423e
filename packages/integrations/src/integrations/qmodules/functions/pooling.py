"""Average pooling that keeps nothing but its input's shape and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from actcore.origins import note_origin, with_origin
from actcore.stored import Stored, announce, is_heard


class AveragePool(Function):
    """An average pool of torch and its backward, to which the input's values do not matter."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        pool: Callable[..., Tensor],
        backward: Callable[..., Tensor],
        arguments: tuple[Any, ...],
        backward_arguments: tuple[Any, ...],
    ) -> Tensor:
        ctx.like, ctx.call = (x.shape, x.stride()), (backward, backward_arguments)
        note_origin(ctx, x)
        if is_heard(ctx):
            announce(Stored(x, getattr(pool, "__name__", "avg_pool").strip("_"), "input", "shape"))
        return pool(x, *arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        backward, arguments = ctx.call
        # Never written and never read: kernels look at its shape and memory format, which one element would not have.
        like = torch.empty_strided(*ctx.like, dtype=gradient.dtype, device=gradient.device)
        return with_origin(ctx, backward(gradient, like, *arguments)), None, None, None, None
