"""A loss whose gradients are computed in the forward, where they are known up to a factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from integrations._torch import get_current_graph_task_keep_graph

Summed = Callable[[Sequence[bool]], tuple[Tensor, Sequence[Tensor | None]]]
"""A function that is told which gradients are wanted, and returns the sum of a loss's terms and its gradients. Those
that are not wanted are ignored."""


NO_SECOND_DERIVATIVE = (
    "a cross-entropy in chunks has no second derivative: leave create_graph=True out, or use "
    "torch.nn.functional.cross_entropy of the logits"
)


def differentiated(summed: Summed, total: Tensor | None, tensors: Sequence[Tensor | None]) -> Tensor:
    """The sum of a loss's terms, divided by ``total`` if that is given. Backward multiplies gradients that exist
    already.

    Args:
        summed: computes the sum and its gradients, without a graph.
        total: the divisor.
        tensors: the tensors that have the gradients.
    """
    if not torch.is_grad_enabled():  # a Function's forward does not know
        alone, _ = summed([False] * len(tensors))
        return alone if total is None else alone / total
    loss: Tensor = _Differentiated.apply(summed, total, *tensors)
    return loss


class _Differentiated(Function):
    @staticmethod
    def forward(ctx: Any, summed: Summed, total: Tensor | None, *tensors: Tensor | None) -> Tensor:
        wanted = ctx.needs_input_grad[2:]
        loss, gradients = summed(wanted)
        ctx.dtypes = [x.dtype for x, wants in zip(tensors, wanted, strict=True) if x is not None and wants]
        made = [gradient for gradient, wants in zip(gradients, wanted, strict=True) if gradient is not None and wants]
        # In float16, a sum of many rows' gradients may overflow before it is divided by their number.
        kept = [
            gradient if dtype is torch.float16 else gradient.to(dtype)
            for gradient, dtype in zip(made, ctx.dtypes, strict=True)
        ]
        ctx.save_for_backward(total, *kept)
        return loss if total is None else loss / total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError(NO_SECOND_DERIVATIVE)
        total, *gradients = ctx.saved_tensors
        # If no row counts, the loss is NaN and its gradients are zero, as torch's are.
        factor = gradient if total is None else torch.where(total == 0, 0.0, gradient / total)
        # If the graph is not retained, nothing else asks for them: they are as large as a vocabulary, and not copied.
        stays = get_current_graph_task_keep_graph()
        scaled = [one * factor if stays else one.mul_(factor) for one in gradients]
        found = iter([one.to(dtype) for one, dtype in zip(scaled, ctx.dtypes, strict=True)])
        return None, None, *(next(found) if needs else None for needs in ctx.needs_input_grad[2:])
