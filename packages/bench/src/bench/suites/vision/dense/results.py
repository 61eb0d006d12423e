"""``DenseCell``: bytes of one model, trained in one way, and its gradient's error."""

from __future__ import annotations

from bench.results.entry import metric, part, series
from bench.suites.vision.compression.results import Cell


@part("dense", "bytes of a model for detection, segmentation or self-supervised learning, trained in one way")
class DenseCell(Cell):
    """One model in one way. ``model`` is a name in ``bench.models.dense.DENSE``."""

    gradient_error: float | None = metric("", "of the whole gradient, relative; none of plain, and where losses differ")
    losses: list[float] = series("", "of the plain step and of this way's, with the same weights and draws")
