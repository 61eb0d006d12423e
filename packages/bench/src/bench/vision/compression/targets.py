"""What is asked of ResNet-50: to keep and to peak as many times smaller as the originals, or more."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.vision.compression.results import Cell
from bench.vision.models import SIZE

MODEL = "resnet50"

KEPT: Mapping[str, float] = MappingProxyType({"L1": 4.8, "L2": 6.7, "L2.2": 11.3, "Q-layers L3": 12.0})
"""Times fewer bytes at least, by way: GACT's figures at 4 and 2 bits on average, ActNN's; L1 has norms in 8 bits."""

PEAK = 4.4
"""Times smaller the peak, which was GACT's while what it kept became 11.3 times smaller."""

PEAKED = ("L2.2", "Q-layers L3")  # of 2 bits on average, as that was


def judged(cell: Cell) -> bool:
    """Whether something was asked of a model and its inputs."""
    return cell.model == MODEL and cell.size == SIZE


def kept_enough(cell: Cell, plain: Cell) -> bool | None:
    """Whether a cell keeps as little as was asked; ``None``: nothing was, or it is unknown."""
    ratio, least = cell.ratio(plain), KEPT.get(cell.way)
    return None if ratio is None or least is None or not judged(cell) else ratio >= least


def peaked_enough(cell: Cell, ratio: float) -> bool | None:
    """Whether one of a cell's ``peak_ratios`` is what was asked; ``None``: nothing was."""
    return ratio > PEAK if cell.way in PEAKED and judged(cell) else None
