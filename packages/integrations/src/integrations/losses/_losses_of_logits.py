"""What is computed from logits that are not computed: losses, log-probabilities, predicted classes.

Each function returns ``NotImplemented`` if it needs the logits themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from integrations._utils.autocast import autocast_on
from integrations.losses._chunks import rows_of_chunk
from integrations.losses._derived import Derived
from integrations.losses._layers import layer_cross_entropy, rows_of_layer
from integrations.losses._linear import cross_entropy_of_rows, linear_chosen, linear_losses
from integrations.losses._terms import Terms, make_terms

_NO_CLASS = torch.iinfo(torch.int64).min
"""A label that no class has, where no label is to be ignored."""


def cross_entropy(
    logits: Derived,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """``F.cross_entropy`` of (rows, classes) with classes as labels."""
    plain = size_average is None and reduce is None and not (weight is not None and weight.requires_grad)
    if logits.source.shard is not None:
        shard = logits.source.shard
        target, weight = shard.own_copy("labels", target), shard.own_copy("weight", weight)
    alike = isinstance(target, Tensor) and target.dtype == torch.int64 and target.device == logits.hidden.device
    if not plain or not alike or len(logits.shape) != 2 or target.shape != logits.shape[:1]:
        return NotImplemented
    return _loss(logits, target, weight, ignore_index, reduction, label_smoothing)


def nll_loss(
    logits: Derived,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """``F.nll_loss`` of log-probabilities, which is the cross-entropy of their logits."""
    return cross_entropy(logits, target, weight, size_average, ignore_index, reduce, reduction)


def _loss(
    logits: Derived, labels: Tensor, weight: Tensor | None, ignored: int, reduction: str, smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of logits of (rows, classes), a chunk at a time."""
    source = logits.source
    given = labels, weight, _terms(logits, ignored, smoothing), reduction, _rows(logits)

    def of_rows(hidden: Tensor) -> Tensor:
        if source.linear is not None:
            layer, bias = source.linear
            return cross_entropy_of_rows(hidden, layer, bias, *given, source.shard)
        return layer_cross_entropy(hidden, source.layer, source.wanting, *given, source.classes)

    loss = _computed(logits, of_rows)
    loss = loss.to(logits.dtype) if autocast_on(logits.hidden.device) is None else loss
    return source.shard.replicate(loss) if logits.placed and source.shard is not None else loss


def _terms(logits: Derived, ignored: int = _NO_CLASS, smoothing: float = 0.0) -> Terms:
    """Return what makes a loss of logits, with what was done to them."""
    return make_terms(ignored, smoothing, logits.scale, logits.cap or None, logits.source.shard)


def _rows(logits: Derived) -> int:
    """Return the rows of a chunk: as many as a plan says, where one operator computes them; or the default."""
    source, flat = logits.source, logits.hidden.reshape(-1, logits.hidden.shape[-1])
    if source.shard is not None and source.linear is not None:
        return rows_of_chunk(flat, source.shard.most, source.linear[0].requires_grad)  # the same on all ranks
    if source.linear is not None and source.rows:
        return max(1, min(source.rows, len(flat)))
    whole = source.classes * flat.shape[-1]
    return rows_of_chunk(flat, source.classes, any(one.numel() >= whole for one in source.wanting))


def expected_loss(logits: Derived) -> Tensor:
    """Return the mean cross-entropy of all rows of logits, for some labels, in the memory of the usual loop. That loop
    shifts the rows of a sequence, which copies them."""
    hidden = logits.hidden
    if hidden.dim() > 2:
        hidden = hidden.index_select(-2, torch.arange(hidden.shape[-2], device=hidden.device))
    rows = replace(logits, hidden=hidden.reshape(-1, hidden.shape[-1]))
    labels = torch.zeros(len(rows.hidden), dtype=torch.int64, device=hidden.device)
    return _loss(rows, labels, None, _NO_CLASS, "mean")


def _computed(logits: Derived, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what a function of the hidden states computes, which are numbers of logits, without the logits."""
    source = logits.source
    with torch.set_grad_enabled(logits.differentiable and torch.is_grad_enabled()):
        found: Tensor = source.compute(function, logits.hidden)
        source.in_chunks(_rows(logits), source.answered)
    source.answered = True
    return found


def log_softmax(logits: Derived, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    """Log-probabilities of all classes, which are not computed either."""
    if not _is_last(dim, logits):
        return NotImplemented
    found = _widened(logits) if dtype is None else dtype
    if torch.promote_types(logits.dtype, found) != found:
        return NotImplemented
    return logits.then(lambda tensor: torch.log_softmax(tensor, -1, dtype=found), dtype=found, normalized=True)


def gathered(logits: Derived, dim: int, index: Any) -> Any:
    """One class of each row."""
    if not _is_last(dim, logits) or not is_index(index, logits) or index.shape != (*logits.shape[:-1], 1):
        return NotImplemented
    return _of_classes(logits, index.flatten()).view(index.shape) if index.numel() else NotImplemented


def picked(logits: Derived, *index: Tensor) -> Any:
    """Some classes of some rows, by an index for each dimension."""
    if logits.placed:
        return NotImplemented
    try:
        *places, classes = torch.broadcast_tensors(*index)
    except RuntimeError:
        return NotImplemented  # torch says what is wrong
    if not 0 < classes.numel() <= logits.hidden.shape[:-1].numel():
        return NotImplemented  # several classes of a row: each would compute the row's logits again
    rows = replace(logits, hidden=logits.hidden[tuple(places)])
    classes = torch.where(classes < 0, classes + logits.shape[-1], classes)
    return _of_classes(rows, classes.flatten()).view(classes.shape)


def _of_classes(logits: Derived, classes: Tensor) -> Tensor:
    """Return a class of each row, (rows,): of the log-probabilities or of the logits."""
    source = logits.source
    rows = replace(logits, hidden=logits.hidden.reshape(-1, logits.hidden.shape[-1]))
    if logits.normalized:
        return -_loss(rows, classes, None, _NO_CLASS, "none").to(logits.dtype)

    def of_rows(hidden: Tensor) -> Tensor:
        terms = _terms(rows)
        if source.linear is not None:
            return terms.scale_and_cap(linear_chosen(hidden, *source.linear, classes, source.shard))
        return rows_of_layer(hidden, source.layer, terms, _choose, classes, _rows(rows))

    return _computed(rows, of_rows).to(logits.dtype)


def _choose(values: Tensor, classes: Tensor) -> Tensor:
    return values.gather(1, classes[:, None]).squeeze(1)


def logsumexp(logits: Derived, dim: Any, keepdim: bool = False) -> Any:
    """``logsumexp`` over the classes."""
    if not _is_last(dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim, logits):
        return NotImplemented
    source = logits.source
    rows = replace(logits, hidden=logits.hidden.reshape(-1, logits.hidden.shape[-1]))
    if not len(rows.hidden):
        return NotImplemented

    def of_rows(hidden: Tensor) -> Tensor:
        terms, count = _terms(rows), _rows(rows)
        if source.linear is not None:
            return linear_losses(hidden, *source.linear, None, None, terms, count)
        nothing = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        return rows_of_layer(hidden, source.layer, terms, lambda some, _: some.logsumexp(1), nothing, count)

    found = _computed(rows, of_rows)
    found = found.to(_widened(logits))
    return found.view(*logits.shape[:-1], 1) if keepdim else found.view(logits.shape[:-1])


def _widened(logits: Derived) -> torch.dtype:
    """Return the dtype of torch's ``log_softmax`` and ``logsumexp``, which autocast widens except on a CPU."""
    device = logits.hidden.device
    if device.type == "cpu" or autocast_on(device) is None:
        return logits.dtype
    return torch.promote_types(logits.dtype, torch.float32)


def _is_last(dim: Any, logits: Derived) -> bool:
    """Return whether a dimension is that of the classes, of logits that are not a ``DTensor``."""
    return not logits.placed and isinstance(dim, int) and dim in (-1, len(logits.shape) - 1)


def is_index(index: Any, logits: Derived) -> bool:
    """Return whether a tensor may name rows or classes of logits."""
    return isinstance(index, Tensor) and index.dtype == torch.int64 and index.device == logits.hidden.device


def argmax(logits: Derived, dim: int | None = None) -> Any:
    """The predicted classes, for an accuracy beside the loss, also computed some rows at a time."""
    if dim not in (-1, len(logits.shape) - 1) or logits.scale <= 0:  # squashing keeps the order
        return NotImplemented
    if logits.source.shard is not None:
        return NotImplemented
    flat = logits.hidden.reshape(-1, logits.hidden.shape[-1])

    def of_rows(hidden: Tensor) -> Tensor:
        return torch.cat([logits.source.layer(part).argmax(-1) for part in hidden.split(_rows(logits))])

    with torch.no_grad():
        found: Tensor = logits.source.compute(of_rows, flat)
    return found.view(logits.shape[:-1])
