"""``StepTable``: a step function that stands for a derivative."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class StepTable:
    """A step function of ``x``, or of ``|x|``: ``levels[i]``, where ``i`` is the number of boundaries that are at most
    that.

    Attributes:
        boundaries: ascending, at most 255; of ``|x|`` if ``even``.
        levels: one more than boundaries.
        even: whether the steps are of ``|x|``, for a derivative that is an even function.
    """

    boundaries: tuple[float, ...]
    levels: tuple[float, ...]
    even: bool = False

    def __post_init__(self) -> None:
        # A list would fail once the table is looked up in a cache.
        object.__setattr__(self, "boundaries", _floats("boundaries", self.boundaries))
        object.__setattr__(self, "levels", _floats("levels", self.levels))
        if len(self.levels) != len(self.boundaries) + 1 or len(self.levels) > 256:
            raise ValueError(
                "levels must be one more than boundaries and at most 256, got "
                f"{len(self.levels)} levels and {len(self.boundaries)} boundaries"
            )
        if not all(map(math.isfinite, self.boundaries + self.levels)):
            raise ValueError("boundaries and levels must be finite numbers; leave out the ends of the domain")
        if any(low > high for low, high in pairwise(self.boundaries)):
            raise ValueError("boundaries must ascend; sort them, and their levels with them")
        if self.even and self.boundaries and self.boundaries[0] < 0:
            raise ValueError(
                f"boundaries of an even table are boundaries of |x| and must be at least 0, got {self.boundaries[0]}"
            )

    @property
    def bits(self) -> int:
        """The fewest bits that tell the levels apart, 1 at the least."""
        return max(1, len(self.boundaries).bit_length())


@dataclass(frozen=True)
class LevelTable:
    """A codebook that a derivative is rounded to at random, up or down to a level beside it.

    Attributes:
        levels: ascending, 2 to 256, from the least value of the derivative to the greatest.
    """

    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _floats("levels", self.levels))
        if not 2 <= len(self.levels) <= 256:
            raise ValueError(f"levels must be 2 to 256, got {len(self.levels)}")
        if not all(map(math.isfinite, self.levels)):
            raise ValueError("levels must be finite numbers")
        if any(low > high for low, high in pairwise(self.levels)):
            raise ValueError("levels must ascend; sort them")

    @property
    def bits(self) -> int:
        """The fewest bits that tell the levels apart."""
        return (len(self.levels) - 1).bit_length()


def _floats(name: str, numbers: Iterable[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, numbers))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a tuple of numbers, got {numbers!r:.80}") from None
