"""Cross-entropy of a linear layer's outputs, and its gradients, some rows of the outputs at a time.

A row's loss needs no other row. So the outputs (the logits of a language model) are made for as many rows as a chunk
has, turned into their own gradient where they lie, multiplied into those of the layer's input, weight and bias, and let
go. What is held are a chunk and these gradients, whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Rows of a chunk, at least: fewer would be too few for a product to pay for reading the weight and its gradient.
_LEAST = {"cpu": 128, "cuda": 512}
# Rows of the weight whose gradient is computed at a time where it is added to a wider dtype.
_BLOCK = 1 << 12


@dataclass(frozen=True)
class Terms:
    """What makes a loss of logits, besides the labels.

    Args:
        ignored: the label of rows that have no loss.
        smoothing: the share of the target that all classes have alike.
        scale: by which logits are multiplied first.
        cap: to which they are squashed then, as ``cap * tanh(logits / cap)``; 0 for none.
    """

    ignored: int
    smoothing: float
    scale: float
    cap: float


@dataclass(frozen=True)
class Sums:
    """Gradients to which each chunk adds its part; ``None`` for those that nobody asked for."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @property
    def wanted(self) -> bool:
        """Whether there are any."""
        return not (self.hidden is None and self.weight is None and self.bias is None)

    def add(self, gradient: Tensor, narrow: Tensor, hidden: Tensor, weight: Tensor, part: slice) -> None:
        """Adds those of a chunk.

        Args:
            gradient: of its logits, (rows, classes), of the losses' dtype.
            narrow: room for these in the dtype of the hidden states; the same tensor if that is the losses'.
            hidden: its rows.
            weight: of the layer.
            part: where its rows are.
        """
        if self.bias is not None:
            self.bias.add_(gradient.sum(0))
        # A CPU's products in float32 take less time than casts of products as large as the weight.
        exactly = self.weight is not None and (narrow is gradient or gradient.device.type == "cpu")
        if self.weight is not None and exactly:
            self.weight.addmm_(gradient.T, hidden.to(gradient.dtype))
        if narrow is not gradient:
            narrow.copy_(gradient)
        if self.weight is not None and not exactly:
            for first in range(0, len(self.weight), _BLOCK):
                block = slice(first, first + _BLOCK)
                self.weight[block].add_(narrow[:, block].T @ hidden)
        if self.hidden is not None:
            torch.mm(narrow, weight, out=self.hidden[part])


def rows_of_chunk(hidden: Tensor, classes: int) -> int:
    """Rows whose logits take about what the hidden states take, or the fewest that are worth a product."""
    alike = hidden.numel() // max(1, classes)
    return max(1, min(hidden.shape[0], max(alike, _LEAST.get(hidden.device.type, _LEAST["cuda"]))))


def chunked(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    class_weight: Tensor | None,
    factors: Tensor | None,
    terms: Terms,
    rows: int,
    sums: Sums,
) -> Tensor:
    """The loss of each row, (rows,), in float32 or wider; 0 where there is none.

    Args:
        hidden: (rows, features), in the dtype that logits are computed in.
        weight: (classes, features), of the same dtype.
        bias: (classes,), of the same dtype.
        labels: (rows,), int64.
        class_weight: (classes,), of the losses' dtype.
        factors: (rows,), of the losses' dtype, by which the gradients of each loss are multiplied; ``None`` for 1.
        terms: of the loss.
        rows: of a chunk.
        sums: the gradients that are wanted, zero at first, of the losses' dtype; the hidden states' of their own.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    losses = torch.empty(len(hidden), dtype=wide, device=hidden.device)
    # One piece of memory for all chunks: made for each, the next would be there before the last is gone.
    room = hidden.new_empty(min(rows, len(hidden)), len(weight))
    wide_room = room if room.dtype is wide else torch.empty_like(room, dtype=wide)
    for first in range(0, len(hidden), rows):
        part = slice(first, first + rows)
        narrow, logits = (one[: len(labels[part])] for one in (room, wide_room))
        if bias is None:
            torch.mm(hidden[part], weight.T, out=narrow)
        else:
            torch.addmm(bias, hidden[part], weight.T, out=narrow)
        if narrow is not logits:
            logits.copy_(narrow)
        tangent = _bend(logits, terms, keeps=sums.wanted)
        losses[part], target = _losses(logits, labels[part], class_weight, terms)
        if sums.wanted:
            _differentiate(logits, target, None if factors is None else factors[part], tangent, terms)
            sums.add(logits, narrow, hidden[part], weight, part)
    return losses


@dataclass(frozen=True)
class _Target:
    """What the rows of a chunk are to say.

    Args:
        lacking: whether a row has no loss, (rows, 1).
        classes: of the labels, (rows, 1); any class where the label is ignored.
        weights: of these classes, (rows, 1); ``None`` for 1.
        of_all: (classes,), the weights of all classes; ``None`` for 1.
    """

    lacking: Tensor
    classes: Tensor
    weights: Tensor | None
    of_all: Tensor | None


def _bend(logits: Tensor, terms: Terms, keeps: bool) -> Tensor | None:
    """Scales and squashes logits, in place; what ``tanh`` returned, if that is kept."""
    if terms.scale != 1:
        logits.mul_(terms.scale)
    if not terms.cap:
        return None
    logits.div_(terms.cap).tanh_()
    squashed = logits.clone() if keeps else None
    logits.mul_(terms.cap)
    return squashed


def _losses(logits: Tensor, labels: Tensor, class_weight: Tensor | None, terms: Terms) -> tuple[Tensor, _Target]:
    """The losses, and of what; the logits become probabilities."""
    lacking = (labels == terms.ignored)[:, None]
    classes = labels[:, None].masked_fill(lacking, 0)
    target = _Target(lacking, classes, None if class_weight is None else class_weight[classes], class_weight)
    hit = logits.gather(1, classes)
    if terms.smoothing:
        total = logits.sum(1, keepdim=True) if class_weight is None else (logits @ class_weight)[:, None]
    largest, place = logits.max(1, keepdim=True)
    torch.softmax(logits, 1, out=logits)
    # The logarithm of the sum that softmax divides by. The largest probability is no less than one of all classes.
    sums = largest - logits.gather(1, place).log()
    losses = sums - hit
    if target.weights is not None:
        losses *= target.weights
    if terms.smoothing:
        count = logits.shape[1]
        weights = count if class_weight is None else class_weight.sum()
        losses = (1 - terms.smoothing) * losses + terms.smoothing / count * (weights * sums - total)
    return losses.masked_fill_(lacking, 0).squeeze(1), target


def _differentiate(
    probabilities: Tensor, target: _Target, factors: Tensor | None, squashed: Tensor | None, terms: Terms
) -> None:
    """Makes probabilities the gradients of the losses for the logits as the layer made them, in place."""
    count = probabilities.shape[1]
    ones = torch.ones_like(probabilities[:, :1])
    of_target = (1 - terms.smoothing) * (ones if target.weights is None else target.weights)
    of_each = ones * (terms.smoothing / count)
    if factors is not None:
        of_target, of_each = of_target * factors[:, None], of_each * factors[:, None]
    if terms.scale != 1:
        of_target, of_each = of_target * terms.scale, of_each * terms.scale
    if target.weights is not None or factors is not None or terms.scale != 1:
        weights = count if target.of_all is None else target.of_all.sum()
        probabilities.mul_(of_target + of_each * weights)
    probabilities.scatter_add_(1, target.classes, -of_target)
    if terms.smoothing:
        probabilities.addcmul_(of_each, torch.ones_like(of_each) if target.of_all is None else target.of_all, value=-1)
    if squashed is not None:
        probabilities.mul_(squashed.square_().neg_().add_(1))
    # Also where they were no numbers, as padding may be. To ask first would have a GPU waited for.
    if probabilities.device.type != "cpu" or target.lacking.any():
        probabilities.masked_fill_(target.lacking, 0)
