"""Cross-entropy of the outputs of a layer that is more than a weight and a bias, some rows at a time.

Such a layer has adapters, say, or a quantised weight. It is called and differentiated for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from actcore.stored import Absent
from integrations.losses._differentiated import differentiated
from integrations.losses._operator import wide
from integrations.losses._terms import Terms, require_reduction


def layer_cross_entropy(
    hidden: Tensor,
    layer: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    labels: Tensor,
    class_weight: Tensor | None,
    terms: Terms,
    reduction: str,
    rows: int,
    classes: int,
) -> Tensor:
    """The cross-entropy of ``layer(hidden)``; the arguments are those of ``cross_entropy_of_rows`` but for these.

    Args:
        hidden: (rows, features).
        layer: computes each row of its output from the same row of its input.
        parameters: those of the layer that require a gradient.
        labels: (rows,), int64.
        classes: the number of the layer's output features.
    """
    require_reduction(reduction)
    # Even of narrower weights: their sum is the divisor of the mean.
    of_classes = None if class_weight is None else class_weight.detach().to(wide(hidden.dtype))
    options: dict[str, Any] = {"ignore_index": terms.ignored, "label_smoothing": terms.smoothing}
    if reduction == "none":

        def losses(logits: Tensor, some: Tensor) -> Tensor:
            return F.cross_entropy(logits, some, of_classes, **options, reduction="none")

        return rows_of_layer(hidden, layer, terms, losses, labels, rows)

    # A chunk has its log-probabilities and two gradients at once; and what tanh returned.
    taken = min(rows, len(hidden)) * classes * wide(hidden.dtype).itemsize * (4 if terms.cap else 3)

    def summed(wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor | None], int]:
        sums: list[Tensor | None] = [
            torch.zeros_like(tensor, dtype=wide(tensor.dtype)) if wants else None
            for tensor, wants in zip((hidden, *parameters), wanted, strict=True)
        ]
        loss = torch.zeros((), dtype=wide(hidden.dtype), device=hidden.device)
        for first in range(0, len(hidden), rows):
            part = slice(first, first + rows)
            with torch.enable_grad(), saved_tensors_hooks(Tensor.detach, _itself):
                some = hidden[part].detach().requires_grad_(wanted[0])
                logits = terms.scale_and_cap(layer(some).to(loss.dtype))
                of_part = F.cross_entropy(logits, labels[part], of_classes, **options, reduction="sum")
            del logits
            loss += of_part.detach()
            _add(sums, of_part, (some, *parameters), part)
        return loss, sums, taken

    total = terms.divisor(labels, of_classes, wide(hidden.dtype)) if reduction == "mean" else None
    logits = Absent.like(hidden, (len(hidden), classes), wide(hidden.dtype))
    return differentiated(summed, total, (hidden, *parameters), logits, rows)


def rows_of_layer(
    hidden: Tensor,
    layer: Callable[[Tensor], Tensor],
    terms: Terms,
    row: Callable[[Tensor, Tensor], Tensor],
    classes: Tensor,
    rows: int,
) -> Tensor:
    """Return a number for each row of ``layer(hidden)``, (rows,). Backward computes the layer's output again, a chunk
    at a time and with the same random numbers.

    Args:
        hidden: (rows, features).
        layer: computes each row of its output from the same row of its input.
        terms: how the layer's outputs are scaled and squashed.
        row: computes the numbers of a chunk from its logits and its part of ``classes``.
        classes: (rows,), int64.
        rows: the rows of a chunk.
    """

    def of_part(some: Tensor, chosen: Tensor) -> Tensor:
        return row(terms.scale_and_cap(layer(some).to(wide(hidden.dtype))), chosen)

    parts = [
        checkpoint(of_part, hidden[first : first + rows], classes[first : first + rows], use_reentrant=False)
        for first in range(0, len(hidden), rows)
    ]
    return torch.cat(parts)


def _add(sums: Sequence[Tensor | None], loss: Tensor, tensors: Sequence[Tensor], part: slice) -> None:
    """Adds the gradients of a part's loss. The first tensor is itself such a part."""
    wanted = [tensor for tensor, total in zip(tensors, sums, strict=True) if total is not None]
    if not wanted:
        return
    found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    for place, total in enumerate(sums):
        gradient = None if total is None else next(found)
        if total is not None and gradient is not None:
            (total[part] if place == 0 else total).add_(gradient)


def _itself(tensor: Tensor) -> Tensor:
    return tensor
