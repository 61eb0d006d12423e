"""``integrations::linear_cross_entropy``: the chunks as one operator, which compilers and captures see whole.

Its backward recomputes the logits, with each row's gradient as the row's factor. So it is right for whatever is done
with the losses. For a sum or a mean, the usual case, these factors are known in the forward already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from integrations._utils.chunked_loss import OPERATOR
from integrations.losses._chunks import Sums, chunked
from integrations.losses._differentiated import NO_SECOND_DERIVATIVE
from integrations.losses._terms import Terms

Wanted = list[bool]
"""Whether gradients of hidden states, weight and bias are wanted."""

_LABELS = 3  # the place of the labels, after hidden states, weight and bias


@torch.library.custom_op(OPERATOR, mutates_args=())
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    class_weight: Tensor | None,
    factors: Tensor | None,
    group: str,
    first: int,
    classes: int,
    ignored: int,
    smoothing: float,
    scale: float,
    cap: float,
    rows: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the losses of rows, and the gradients of hidden states, weight and bias; empty tensors for those that are
    not wanted. Without labels, return each row's ``logsumexp`` in place of its loss.

    The arguments are those of ``chunked`` and ``Terms``.
    """
    made = _empty(hidden, weight, wanted)
    sums = Sums(*(tensor.zero_() if wants else None for tensor, wants in zip(made, wanted, strict=True)))
    with torch.autocast(hidden.device.type, enabled=False):
        terms = Terms(group, first, classes, ignored, smoothing, scale, cap)
        losses = chunked(hidden, weight, bias, labels, class_weight, factors, terms, rows, sums)
    return losses, *made  # type: ignore[return-value]  # three of them


@linear_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, ...]:
    wanted: Wanted = others[-1]
    return hidden.new_empty(hidden.shape[:1], dtype=wide(hidden.dtype)), *_empty(hidden, weight, wanted)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses and sums: that of the logits, at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _empty(hidden: Tensor, weight: Tensor, wanted: Wanted) -> list[Tensor]:
    shapes = hidden.shape, weight.shape, weight.shape[:1]
    dtypes = hidden.dtype, wide(hidden.dtype), wide(hidden.dtype)
    return [
        hidden.new_empty(shape if wants else (0,), dtype=dtype)
        for shape, dtype, wants in zip(shapes, dtypes, wanted, strict=True)
    ]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    hidden, weight, bias, labels, class_weight, _, *ctx.numbers, ctx.rows, ctx.wanted = inputs
    ctx.save_for_backward(hidden, weight, bias, labels, class_weight)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, of_losses: Tensor | None, *of_gradients: Tensor | None) -> tuple[Any, ...]:
    if any(gradient is not None for gradient in of_gradients) or any(ctx.wanted):
        raise NotImplementedError(NO_SECOND_DERIVATIVE)
    count = len(ctx.needs_input_grad)
    if of_losses is None:
        return (None,) * count
    hidden, weight, bias, labels, class_weight = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:_LABELS])
    _, *found = linear_cross_entropy(
        hidden, weight, bias, labels, class_weight, of_losses, *ctx.numbers, ctx.rows, needs
    )
    dtypes = hidden.dtype, weight.dtype, weight.dtype
    three = [one.to(dtype) if need else None for one, dtype, need in zip(found, dtypes, needs, strict=True)]
    return *three, *(None,) * (count - _LABELS)


linear_cross_entropy.register_autograd(_backward, setup_context=_remember)
