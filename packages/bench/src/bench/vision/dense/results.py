"""``DenseCell``: bytes of one model, trained in one way, and its gradient's error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.vision.compression.results import Cell


@dataclass(frozen=True)
class DenseCell(Cell):
    """One model in one way. ``model`` is a name in ``bench.vision.dense.models.DENSE``.

    Attributes:
        gradient_error: the norm of the difference of the whole gradient from the plain one's, over the norm of that;
            ``None`` for the untouched model, and where losses differ.
        losses: of the plain step and of this way's, with the same weights and the same draws.
    """

    gradient_error: float | None = None
    losses: tuple[float, float] | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> DenseCell:
        """From what ``dataclasses.asdict`` made of one, and JSON of that."""
        losses = content["losses"]
        return cls(**{**content, "losses": None if losses is None else tuple(losses)})
