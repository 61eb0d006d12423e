"""Cross-entropy of a linear layer's outputs, and its gradients, some rows of the outputs at a time.

A row's loss needs no other row. So the outputs (the logits of a language model) are made for as many rows as a chunk
has, turned into their own gradient where they lie, multiplied into those of the layer's input, weight and bias, and let
go. What is held are a chunk and these gradients, whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from integrations._utils.chunked_loss import WEIGHT_ROWS
from integrations.losses._shards import own_classes
from integrations.losses._terms import Terms

# The least rows of a chunk: with fewer, a product would not pay for reading the weight and its gradient.
_LEAST = {"cpu": 128, "cuda": 512}
# With more rows, adding a chunk to the weight's gradient takes a small part of the chunk's time. On one core of a CPU,
# 1,024 rows of 512 features and 32,000 classes in float32 took the least time in chunks of 512, of 64 to 1,024 rows. On
# a GPU of 600 TFLOP/s and 3 TB/s, 8,192 rows make it a twentieth, by arithmetic.
_MOST = {"cpu": 512, "cuda": 8192}


@dataclass(frozen=True)
class Sums:
    """Gradients to which each chunk adds its part; ``None`` for one that is not wanted."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @property
    def wanted(self) -> bool:
        """Whether any gradient is wanted."""
        return not (self.hidden is None and self.weight is None and self.bias is None)

    def add(self, gradient: Tensor, narrow: Tensor, hidden: Tensor, weight: Tensor, part: slice) -> None:
        """Adds the gradients of a chunk.

        Args:
            gradient: the gradient of its logits, (rows, classes), of the losses' dtype.
            narrow: room for this gradient in the dtype of the hidden states; the same tensor if the dtypes are the
                same.
            hidden: the chunk's rows of the hidden states.
            weight: the layer's.
            part: where the chunk's rows are.
        """
        if self.bias is not None:
            self.bias.add_(gradient.sum(0))
        # On a CPU, products in float32 take less time than casts of products as large as the weight.
        exactly = self.weight is not None and (narrow is gradient or gradient.device.type == "cpu")
        if self.weight is not None and exactly:
            self.weight.addmm_(gradient.T, hidden.to(gradient.dtype))
        if narrow is not gradient:
            narrow.copy_(gradient)
        if self.weight is not None and not exactly:
            for first in range(0, len(self.weight), WEIGHT_ROWS):
                block = slice(first, first + WEIGHT_ROWS)
                self.weight[block].add_(narrow[:, block].T @ hidden)
        if self.hidden is not None:
            torch.mm(narrow, weight, out=self.hidden[part])


def rows_of_chunk(hidden: Tensor, classes: int, of_weight: bool = False) -> int:
    """Return the rows of a chunk where nothing is known of free memory.

    Their logits take about as much memory as the hidden states. If each chunk is added to a gradient as large as the
    weight, which takes as long however few rows it has, they take up to half of that gradient's memory, and up to a
    quarter of all logits. A chunk never has fewer rows than a product is worth.

    Args:
        hidden: (rows, features).
        classes: how many classes there are.
        of_weight: whether the weight gets a gradient.
    """
    count, features = hidden.shape
    alike = hidden.numel() // max(1, classes)
    added = min(features // 2, -(-count // 4)) if of_weight else 0
    return max(1, min(count, max(alike, added, _LEAST.get(hidden.device.type, _LEAST["cuda"]))))


def most_rows_of_chunk(device: str) -> int:
    """Return the rows of a chunk beyond which more make nothing faster, for a type of device."""
    return _MOST.get(device, _MOST["cuda"])


def chunked(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    class_weight: Tensor | None,
    factors: Tensor | None,
    terms: Terms,
    rows: int,
    sums: Sums,
) -> Tensor:
    """Return the loss of each row, (rows,), in float32 or wider; 0 where there is none. Without labels, return each
    row's ``logsumexp``.

    Args:
        hidden: (rows, features), in the dtype that logits are computed in.
        weight: (classes, features), of the same dtype.
        bias: (classes,), of the same dtype.
        labels: (rows,), int64; or ``None``.
        class_weight: (classes,), of the losses' dtype.
        factors: (rows,), of the losses' dtype: the factors of each loss's gradients; ``None`` for 1.
        terms: what makes the loss.
        rows: the rows of a chunk.
        sums: the wanted gradients, zero at first, of the losses' dtype; that of the hidden states is of their dtype.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    losses = torch.empty(len(hidden), dtype=wide, device=hidden.device)
    # One buffer for all chunks. With one for each, the next would be made before the last is freed.
    room = hidden.new_empty(min(rows, len(hidden)), len(weight))
    wide_room = room if room.dtype is wide else torch.empty_like(room, dtype=wide)
    for first in range(0, len(hidden), rows):
        part = slice(first, first + rows)
        narrow = room[: len(hidden[part])]
        logits = narrow if wide_room is room else wide_room[: len(hidden[part])]
        if bias is None:
            torch.mm(hidden[part], weight.T, out=narrow)
        else:
            torch.addmm(bias, hidden[part], weight.T, out=narrow)
        if narrow is not logits:
            logits.copy_(narrow)
        tangent = _scale_and_cap(logits, terms, keeps=sums.wanted)
        losses[part], target = _losses(logits, None if labels is None else labels[part], class_weight, terms)
        if sums.wanted:
            _differentiate(logits, target, None if factors is None else factors[part], tangent, terms)
            sums.add(logits, narrow, hidden[part], weight, part)
        del tangent  # free it before the next chunk makes its own
    return losses


@dataclass(frozen=True)
class _Target:
    """The target of rows.

    Args:
        lacking: whether a row has no loss, (rows, 1).
        places: where the labels' classes are among the logits, (rows, 1); any place if the label is ignored, or a class
            of another rank.
        own: whether they are classes of this rank, (rows, 1); ``None`` if all are.
        weights: the weights of the labels' classes, (rows, 1); ``None`` for 1.
        of_each: the weights of this rank's classes, (classes,); ``None`` for 1.
        of_all: the sum of the weights of all classes.
        count: the number of all classes.
    """

    lacking: Tensor
    places: Tensor
    own: Tensor | None
    weights: Tensor | None
    of_each: Tensor | None
    of_all: Tensor | int
    count: int

    @classmethod
    def of(cls, labels: Tensor, class_weight: Tensor | None, classes: int, terms: Terms) -> _Target:
        """The target of labels for logits of ``classes`` classes."""
        lacking = (labels == terms.ignored)[:, None]
        places, own, of_each = labels[:, None].masked_fill(lacking, 0), None, class_weight
        weights = None if class_weight is None else class_weight[places]
        if terms.group:
            places, own = own_classes(places, terms.first, classes, terms.classes)
            of_each = None if class_weight is None else class_weight[terms.first : terms.first + classes]
        count = terms.classes if terms.group else classes
        return cls(lacking, places, own, weights, of_each, count if class_weight is None else class_weight.sum(), count)

    def of_own(self, values: Tensor) -> Tensor:
        """Values of rows, (rows, 1), and 0 for rows whose class is another rank's."""
        return values if self.own is None else values.masked_fill(~self.own, 0)


def _scale_and_cap(logits: Tensor, terms: Terms, keeps: bool) -> Tensor | None:
    """Scales and squashes logits in place. Returns what ``tanh`` returned, if ``keeps``."""
    if terms.scale != 1:
        logits.mul_(terms.scale)
    if not terms.cap:
        return None
    logits.div_(terms.cap).tanh_()
    squashed = logits.clone() if keeps else None
    logits.mul_(terms.cap)
    return squashed


def _losses(
    logits: Tensor, labels: Tensor | None, class_weight: Tensor | None, terms: Terms
) -> tuple[Tensor, _Target | None]:
    """Return the losses and their target, or ``logsumexp`` and ``None``. The logits become probabilities."""
    if labels is None:
        (sums,) = _normalize(logits, [], terms)
        return sums.squeeze(1), None
    target = _Target.of(labels, class_weight, logits.shape[1], terms)
    parts = [target.of_own(logits.gather(1, target.places))]
    if terms.smoothing:
        of_each = target.of_each
        parts.append(logits.sum(1, keepdim=True) if of_each is None else (logits @ of_each)[:, None])
    sums, hit, *totals = _normalize(logits, parts, terms)
    losses = sums - hit
    if target.weights is not None:
        losses *= target.weights
    for total in totals:
        even = target.of_all * sums - total
        losses = (1 - terms.smoothing) * losses + terms.smoothing / target.count * even
    return losses.masked_fill_(target.lacking, 0).squeeze(1), target


def _normalize(logits: Tensor, parts: list[Tensor], terms: Terms) -> list[Tensor]:
    """Turn logits into probabilities in place. Return their ``logsumexp``, (rows, 1), and sums over the group of what
    each rank has of some numbers, which are (rows, 1), too."""
    if not terms.group:
        largest, place = logits.max(1, keepdim=True)
        torch.softmax(logits, 1, out=logits)
        # The logarithm of softmax's divisor. The largest probability is at least one over the number of classes.
        return [largest - logits.gather(1, place).log(), *parts]
    largest = terms.largest(logits.amax(1, keepdim=True))
    logits.sub_(largest).exp_()
    divisor, *totals = terms.total(torch.cat([logits.sum(1, keepdim=True), *parts], 1)).split(1, 1)
    logits.div_(divisor)
    return [largest + divisor.log(), *totals]


def _differentiate(
    probabilities: Tensor, target: _Target | None, factors: Tensor | None, squashed: Tensor | None, terms: Terms
) -> None:
    """Turn probabilities in place into the gradients of the losses for the layer's logits."""
    ones = torch.ones_like(probabilities[:, :1])
    if target is None:
        probabilities.mul_((ones if factors is None else factors[:, None]) * terms.scale)
        _differentiate_cap(probabilities, squashed)
        return
    of_target = (1 - terms.smoothing) * (ones if target.weights is None else target.weights)
    of_each = ones * (terms.smoothing / target.count)
    if factors is not None:
        of_target, of_each = of_target * factors[:, None], of_each * factors[:, None]
    if terms.scale != 1:
        of_target, of_each = of_target * terms.scale, of_each * terms.scale
    if target.weights is not None or factors is not None or terms.scale != 1:
        probabilities.mul_(of_target + of_each * target.of_all)
    probabilities.scatter_add_(1, target.places, -target.of_own(of_target))
    if terms.smoothing:
        weights = torch.ones_like(of_each) if target.of_each is None else target.of_each
        probabilities.addcmul_(of_each, weights, value=-1)
    _differentiate_cap(probabilities, squashed)
    # Even if the logits were NaN, as those of padding may be. To check for such rows first would wait for a GPU.
    if probabilities.device.type != "cpu" or target.lacking.any():
        probabilities.masked_fill_(target.lacking, 0)


def _differentiate_cap(gradient: Tensor, squashed: Tensor | None) -> None:
    """Multiply a gradient in place by the derivative of the bound to which logits were squashed, if they were."""
    if squashed is not None:
        gradient.mul_(squashed.square_().neg_().add_(1))
