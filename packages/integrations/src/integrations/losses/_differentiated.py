"""A loss whose gradients are computed in the forward, where they are known up to a factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from actcore.stored import Absent, Stored, announce, is_heard
from integrations._utils.torch_internals import get_current_graph_task_keep_graph
from integrations.tracing.storage.records import name_of_chunks

_TENSORS = 4  # the place of the first tensor among the arguments
_OPERATOR = "chunked cross_entropy"

Summed = Callable[[Sequence[bool]], tuple[Tensor, Sequence[Tensor | None], int]]
"""A function that is told which gradients are wanted. It returns the sum of a loss's terms, its gradients, and the
bytes that it took while it ran beside these. Gradients that are not wanted are ignored."""


NO_SECOND_DERIVATIVE = (
    "a cross-entropy in chunks has no second derivative: leave create_graph=True out, or use "
    "torch.nn.functional.cross_entropy of the logits"
)


def differentiated(
    summed: Summed, total: Tensor | None, tensors: Sequence[Tensor | None], logits: Absent, rows: int
) -> Tensor:
    """The sum of a loss's terms, divided by ``total`` if that is given. Backward multiplies gradients that exist
    already.

    Args:
        summed: computes the sum and its gradients, without a graph.
        total: the divisor.
        tensors: the tensors that get the gradients; the first one is the layer's input.
        logits: a stand-in for the softmax that the loss of all logits saves, for a report.
        rows: the rows of a chunk.
    """
    if not torch.is_grad_enabled():  # a Function's forward does not know
        alone, *_ = summed([False] * len(tensors))
        return alone if total is None else alone / total
    loss: Tensor = _Differentiated.apply(summed, total, logits, rows, *tensors)
    return loss


class _Differentiated(Function):
    @staticmethod
    def forward(
        ctx: Any, summed: Summed, total: Tensor | None, logits: Absent, rows: int, *tensors: Tensor | None
    ) -> Tensor:
        wanted = ctx.needs_input_grad[_TENSORS:]
        loss, gradients, taken = summed(wanted)
        ctx.dtypes = [x.dtype for x, wants in zip(tensors, wanted, strict=True) if x is not None and wants]
        made = [gradient for gradient, wants in zip(gradients, wanted, strict=True) if gradient is not None and wants]
        # In float16, a sum of many rows' gradients may overflow before it is divided by their number.
        kept = [
            gradient if dtype is torch.float16 else gradient.to(dtype)
            for gradient, dtype in zip(made, ctx.dtypes, strict=True)
        ]
        if is_heard(ctx):
            copied = sum(new.nbytes for new, old in zip(kept, made, strict=True) if new is not old)
            most = sum(gradient.nbytes for gradient in made) + max(taken, copied)
            nbytes = most - sum(gradient.nbytes for gradient in kept)
            _announce(tensors, wanted, kept, logits, name_of_chunks(rows, nbytes))
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
        given = (next(found) if needs else None for needs in ctx.needs_input_grad[_TENSORS:])
        return *(None,) * _TENSORS, *given


def _announce(
    tensors: Sequence[Tensor | None], wanted: Sequence[bool], kept: Sequence[Tensor], logits: Absent, codec: str
) -> None:
    """Announce the tensors that torch's own layer and loss save, and the gradients that are kept instead. torch saves
    the input, for the weight's gradient, and the softmax."""
    hidden, *parameters = tensors
    if hidden is None or not any(want for want, one in zip(wanted[1:], parameters, strict=True) if one is not None):
        announce(Stored(logits, _OPERATOR, "result", codec, tuple(kept)))
        return
    of_input, others = (kept[:1], kept[1:]) if wanted[0] else ((), kept)
    announce(
        Stored(hidden, _OPERATOR, "input", codec, tuple(of_input)),
        Stored(logits, _OPERATOR, "result", codec, tuple(others)),
    )
