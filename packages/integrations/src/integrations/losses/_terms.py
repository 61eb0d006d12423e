"""``Terms``: what makes a loss of logits, besides the logits and the labels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from integrations._utils.torch_internals import process_group
from integrations.losses._shards import VocabularyShard

_REDUCTIONS = ("mean", "sum", "none")


class Terms(NamedTuple):
    """What makes a loss of logits, in the order of the operator's arguments.

    Attributes:
        group: the name of the process group whose ranks have the logits of other classes of the same rows; empty if
            this rank has those of all classes.
        first: the first of this rank's classes, if there is a group.
        classes: the number of classes of all ranks, if there is a group.
        ignored: the label of rows that have no loss.
        smoothing: the share of the target that is spread evenly over all classes.
        scale: the factor by which logits are multiplied first.
        cap: the bound to which they are squashed then, as ``cap * tanh(logits / cap)``; 0 for none.
    """

    group: str = ""
    first: int = 0
    classes: int = 0
    ignored: int = -100
    smoothing: float = 0.0
    scale: float = 1.0
    cap: float = 0.0

    def scale_and_cap(self, outputs: Tensor) -> Tensor:
        """Scale and squash outputs of the layer."""
        if not self.cap:
            return outputs if self.scale == 1 else outputs * self.scale
        return self.cap * torch.tanh(outputs * (self.scale / self.cap))

    def divisor(self, labels: Tensor, class_weight: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The number by which the sum of losses is divided for their mean."""
        counted = labels != self.ignored
        if class_weight is None:
            return counted.sum().to(dtype)
        return class_weight[labels.masked_fill(~counted, 0)].mul(counted).sum()

    def largest(self, values: Tensor) -> Tensor:
        """Replace values by the largest of all ranks of the group."""
        dist.all_reduce(values, dist.ReduceOp.MAX, process_group(self.group))
        return values

    def total(self, values: Tensor) -> Tensor:
        """Replace values by their sums over all ranks of the group."""
        dist.all_reduce(values, dist.ReduceOp.SUM, process_group(self.group))
        return values


def make_terms(
    ignore_index: Any, label_smoothing: Any, scale: Any, softcap: Any, shard: VocabularyShard | None = None
) -> Terms:
    """Return the terms of a loss.

    Args:
        ignore_index, label_smoothing, scale, softcap: as for ``linear_cross_entropy``.
        shard: the classes of this rank; ``None`` for all classes.

    Raises:
        TypeError: ``ignore_index`` is not an int, or ``scale`` not a finite number.
        ValueError: ``label_smoothing`` or ``softcap`` is out of range.
    """
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int, got {ignore_index!r}")
    if not _is_number(label_smoothing) or not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1, got {label_smoothing!r}")
    if not _is_number(scale):
        raise TypeError(f"scale must be a finite number, got {scale!r}; to train the scale, multiply hidden by it")
    if softcap is not None and not (_is_number(softcap) and softcap > 0):
        raise ValueError(f"softcap must be a finite number above 0, or None, got {softcap!r}")
    place = ("", 0, 0) if shard is None else shard.numbers
    return Terms(*place, ignore_index, float(label_smoothing), float(scale), float(softcap or 0))


def require_reduction(reduction: str) -> None:
    """Raise for an unknown reduction.

    Raises:
        ValueError: it is unknown.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
