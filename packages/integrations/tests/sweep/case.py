"""``Case``: a model with its batch, and the distance of two gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A model in training mode, and a function that computes its loss on one batch.

    Attributes:
        model: with random weights.
        loss: forward of the model.
        what: the batch, in words.
    """

    model: nn.Module
    loss: Callable[[], Tensor]
    what: str


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The Euclidean norm of the difference of two whole gradients over that of the exact one."""
    error = sum((one - other).square().sum().item() for one, other in zip(found, exact, strict=True))
    norm = sum(expected.square().sum().item() for expected in exact)
    return float((error / norm) ** 0.5)
