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


def layer_cross_entropy(
    hidden: Tensor,
    layer: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    labels: Tensor,
    *,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    scale: float,
    softcap: float | None,
    rows: int,
    classes: int,
) -> Tensor:
    """The cross-entropy of ``layer(hidden)``; the arguments are those of ``linear_cross_entropy`` but for these.

    Args:
        hidden: (rows, features).
        layer: computes each row of its output from the same row of its input.
        parameters: those of the layer that require a gradient.
        reduction: ``"mean"`` or ``"sum"``.
        classes: the number of the layer's output features.
    """
    counted = labels != ignore_index
    # Even of narrower weights: their sum is the divisor of the mean.
    of_classes = None if class_weight is None else class_weight.detach().to(wide(hidden.dtype))
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": "sum"}

    # A chunk has its log-probabilities and two gradients at once; and what tanh returned.
    taken = min(rows, len(hidden)) * classes * wide(hidden.dtype).itemsize * (3 if softcap is None else 4)

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
                logits = layer(some).to(loss.dtype) * scale
                if softcap is not None:
                    logits = softcap * torch.tanh(logits / softcap)
                of_part = F.cross_entropy(logits, labels[part], of_classes, **options)
            del logits
            loss += of_part.detach()
            _add(sums, of_part, (some, *parameters), part)
        return loss, sums, taken

    total = None
    if reduction == "mean":
        weights = counted if of_classes is None else of_classes[labels.masked_fill(~counted, 0)] * counted
        total = weights.sum().to(wide(hidden.dtype))
    logits = Absent.like(hidden, (len(hidden), classes), wide(hidden.dtype))
    return differentiated(summed, total, (hidden, *parameters), logits, rows)


def rows_of_layer(
    hidden: Tensor,
    layer: Callable[[Tensor], Tensor],
    row: Callable[[Tensor, Tensor], Tensor],
    classes: Tensor,
    rows: int,
) -> Tensor:
    """Return a number for each row of ``layer(hidden)``, (rows,). Backward computes the layer's output again, a chunk
    at a time and with the same random numbers.

    Args:
        hidden: (rows, features).
        layer: computes each row of its output from the same row of its input.
        row: computes the numbers of a chunk from the layer's output and the chunk's part of ``classes``.
        classes: (rows,), int64.
        rows: the rows of a chunk.
    """

    def of_part(some: Tensor, chosen: Tensor) -> Tensor:
        return row(layer(some), chosen)

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
