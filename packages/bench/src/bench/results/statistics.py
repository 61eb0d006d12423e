"""Paired comparison with full precision: the mean difference over seeds and its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

CONFIDENCE = 0.95

UNDECIDED: Final = "undecided"
"""A target that the measurements neither show to be reached nor to be missed."""

Reached = bool | Literal["undecided"] | None
"""Whether a target is reached; ``None`` where there is none, or nothing to judge by."""


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences.

    Attributes:
        mean: of the differences.
        low, high: Student's t interval of the mean at ``CONFIDENCE``; ``None`` for a single pair, which has none.
    """

    mean: float
    low: float | None
    high: float | None

    def meets(self, margin: float) -> Reached:
        """Whether the interval lies in ``-margin .. margin``: ``True`` if all of it does, ``False`` if nothing of it
        does, ``"undecided"`` if a part does; ``None`` where there is no interval. Fewer seeds have a wider interval, so
        that they decide less."""
        if self.low is None or self.high is None:
            return None
        if -margin <= self.low and self.high <= margin:
            return True
        return UNDECIDED if self.low <= margin and self.high >= -margin else False


def paired_difference(values: Sequence[float], references: Sequence[float]) -> Difference:
    """The mean of ``values[i] - references[i]`` and its interval.

    Raises:
        ValueError: there are no pairs, or the numbers of values differ.
    """
    if len(values) != len(references) or not values:
        raise ValueError(
            f"values and references must be equally many, at least 1, got {len(values)} and {len(references)}"
        )
    differences = np.subtract(values, references)
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, None, None)
    # A second to import, which each process of a cell would spend, and a machine that is lent need not have it.
    from scipy import stats

    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)) * error
    return Difference(mean, mean - half, mean + half)


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; ``None`` for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
