"""The largest number that fits: growth until one does not, then bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_GROWTH = 1.1  # the first factor; each next is the square of the one before, so that a good first guess costs little
_MOST_GROWTH = 2.0


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        largest: that fits; ``None`` where not even the least does.
        capped: whether it is the largest that there is, so that what does not fit is not known.
    """

    largest: int | None
    capped: bool = False


@dataclass(frozen=True)
class Grid:
    """The numbers ``least``, ``least + step``, ... up to ``most``."""

    least: int
    most: int
    step: int

    def __post_init__(self) -> None:
        if not (0 < self.least <= self.most and self.step > 0):
            raise ValueError(
                f"0 < least <= most and 0 < step are needed, got {self.least}, {self.most} and {self.step}"
            )

    def below(self, value: float) -> int:
        """The largest that is not above a value; the least where none is."""
        value = min(max(value, self.least), self.most)
        return self.least + int((value - self.least) // self.step) * self.step


def largest(fits: Callable[[int], bool], grid: Grid, first: int, resolution: float) -> Found:
    """Finds the largest number that fits, where all below it do. It asks the same questions each time.

    Where some below it do not, as may be at the border, the answer is a number that was seen to fit, and the next that
    was asked above it did not.

    Args:
        fits: whether a number does; asked about each at most once.
        grid: the numbers.
        first: where to begin; a good guess makes the search short.
        resolution: it ends where the least that does not fit is at most so much larger, relatively; 0: where it is the
            grid's next.
    """
    low, high = _bracket(fits, grid, grid.below(first))
    if low is None or high is None:
        return Found(low, capped=low is not None)
    while high - low > grid.step and high > low * (1 + resolution):
        middle = min(max(grid.below(math.sqrt(low * high)), low + grid.step), high - grid.step)
        if fits(middle):
            low = middle
        else:
            high = middle
    return Found(low)


def _bracket(fits: Callable[[int], bool], grid: Grid, at: int) -> tuple[int | None, int | None]:
    """A number that fits and a larger one that does not; ``None`` for one that there is not."""
    top, factor = grid.below(grid.most), _GROWTH
    if fits(at):
        while at < top:
            more = max(grid.below(at * factor), at + grid.step)
            if not fits(more):
                return at, more
            at, factor = more, min(factor**2, _MOST_GROWTH)
        return at, None
    while at > grid.least:
        less = min(grid.below(at / factor), at - grid.step)
        if fits(less):
            return less, at
        at, factor = less, min(factor**2, _MOST_GROWTH)
    return None, at
