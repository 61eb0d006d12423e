"""``fit_steps`` and ``fit_levels``: the step function, and the codebook, with the least error on given values."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

from torch import Tensor

import actcore._native as _native

Numbers = Sequence[float] | Tensor

MOST_VALUES = 1 << 15
MOST_PIECES = 256


@dataclass(frozen=True)
class StepFit:
    """A step function over a row of values.

    Attributes:
        cuts: ascending, one fewer than levels: piece ``i`` ends before the value at ``cuts[i]``.
        levels: the weighted mean of each piece's values.
        error: the sum of ``weight * (value - level)**2``.
    """

    cuts: tuple[int, ...]
    levels: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class LevelFit:
    """A codebook for values that are rounded at random to one of the two levels around them.

    Attributes:
        levels: ascending; they include the first and the last candidate.
        error: the sum of ``weight * (level above - value) * (value - level below)``: each value's weight times the
            variance of its rounding.
    """

    levels: tuple[float, ...]
    error: float


@overload
def fit_steps(values: Numbers, weights: Numbers | None, pieces: int) -> StepFit: ...
@overload
def fit_steps(values: Numbers, weights: Numbers | None, pieces: Sequence[int]) -> tuple[StepFit, ...]: ...
def fit_steps(values: Numbers, weights: Numbers | None, pieces: int | Sequence[int]) -> StepFit | tuple[StepFit, ...]:
    """Cuts a row of values into contiguous pieces, so that each is as near to its own mean as can be.

    Minimises ``sum(weights * (values - level)**2)`` with one level a piece: the exact dynamic program that "Few-bit
    backward" (Novikov et al., ICML 2023) takes its tables from. One run finds the optimum for every number of pieces,
    so ask for several at once. It takes a time that grows with the square of the values, and ``12 * len(values) *
    max(pieces)`` bytes. Other Python threads run meanwhile.

    Args:
        values: ``Float["n"]``, 1 to 32,768 finite numbers in the order of the row, which need not ascend.
        weights: ``Float["n"]``, finite and not negative; ``None`` for equal ones.
        pieces: 1 to 256, or several such numbers. More than there are values are as many as there are values.

    Returns:
        A ``StepFit``, or one for each number. Where all weights of a piece are 0, its level is the plain mean.

    Raises:
        TypeError: ``pieces`` is no int, or values or weights are no numbers.
        ValueError: sizes that differ or are out of range, a number that is not finite, a negative weight. The message
            says which.
    """
    row = _numbers("values", values)
    weight = _weights(weights, row)
    counts = _counts("pieces", pieces, least=1)
    _require_finite_square(row, weight)
    fits = tuple(
        StepFit(tuple(cuts), tuple(levels), error) for cuts, levels, error in _native.fit_steps(row, weight, counts)
    )
    return fits[0] if isinstance(pieces, int) else fits


@overload
def fit_levels(values: Numbers, weights: Numbers | None, candidates: Numbers, levels: int) -> LevelFit: ...
@overload
def fit_levels(
    values: Numbers, weights: Numbers | None, candidates: Numbers, levels: Sequence[int]
) -> tuple[LevelFit, ...]: ...
def fit_levels(
    values: Numbers, weights: Numbers | None, candidates: Numbers, levels: int | Sequence[int]
) -> LevelFit | tuple[LevelFit, ...]:
    """Chooses levels for stochastic rounding, so that its variance is least.

    A value between two neighbouring levels ``low`` and ``high`` is rounded to one of them with the probability that
    makes its mean the value, which gives it the variance ``(high - value) * (value - low)``. The sum of these,
    weighted, is minimised exactly over the candidates, by the dynamic program of ``fit_steps``.

    Args:
        values: ``Float["n"]``, finite, in any order.
        weights: ``Float["n"]``, finite and not negative; ``None`` for equal ones.
        candidates: ``Float["m"]``, 2 to 32,768 numbers that ascend strictly, the first not above any value and the last
            not below any: both are levels.
        levels: 2 to 256, or several such numbers. More than there are candidates are all candidates.

    Returns:
        A ``LevelFit``, or one for each number.

    Raises:
        TypeError: ``levels`` is no int, or values, weights or candidates are no numbers.
        ValueError: sizes that differ or are out of range, a number that is not finite, a negative weight, candidates
            that do not ascend or do not enclose the values. The message says which.
    """
    row = _numbers("values", values, most=None)
    weight = _weights(weights, row)
    grid = _numbers("candidates", candidates, least=2)
    counts = _counts("levels", levels, least=2)
    for low, high in pairwise(grid):
        if not low < high:
            raise ValueError(
                f"candidates must ascend strictly, got {low} before {high}; sort them and remove duplicates"
            )
    if grid[0] > min(row) or grid[-1] < max(row):
        raise ValueError(
            f"candidates must enclose the values, which go from {min(row)} to {max(row)}, got candidates from "
            f"{grid[0]} to {grid[-1]}"
        )
    _require_finite_square(grid, weight)
    order = sorted(range(len(row)), key=row.__getitem__)
    found = _native.fit_levels([row[i] for i in order], [weight[i] for i in order], grid, counts)
    fits = tuple(LevelFit(tuple(grid[i] for i in chosen), error) for chosen, error in found)
    return fits[0] if isinstance(levels, int) else fits


def _numbers(name: str, numbers: Numbers, least: int = 1, most: int | None = MOST_VALUES) -> list[float]:
    if isinstance(numbers, Tensor):
        if numbers.dim() != 1:
            raise ValueError(f"{name} must have one dimension, got the shape {tuple(numbers.shape)}")
        numbers = numbers.tolist()
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise TypeError(f"{name} must be a sequence of numbers or a tensor, got {numbers!r}")
    if len(numbers) < least or (most is not None and len(numbers) > most):
        size = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} must hold {size} numbers, got {len(numbers)}")
    for i, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{name}[{i}] must be an int or a float, got {number!r}")
        if not abs(number) <= sys.float_info.max:  # an int may be larger than any float
            raise ValueError(f"{name}[{i}] must be finite, got {number}; leave out what has no value")
    return list(map(float, numbers))


def _weights(weights: Numbers | None, values: list[float]) -> list[float]:
    if weights is None:
        return [1.0] * len(values)
    found = _numbers("weights", weights, most=None)
    if len(found) != len(values):
        raise ValueError(f"weights must have one entry for each of the {len(values)} values, got {len(found)}")
    for i, weight in enumerate(found):
        if weight < 0:
            raise ValueError(f"weights[{i}] must not be negative, got {weight}")
    return found


def _counts(name: str, counts: int | Sequence[int], least: int) -> list[int]:
    several = [counts] if isinstance(counts, int) else counts
    if not isinstance(several, Sequence) or isinstance(several, str):
        raise TypeError(f"{name} must be an int or a sequence of ints, got {counts!r}")
    if not several:
        raise ValueError(f"{name} must hold at least one number, got none")
    for count in several:
        if type(count) is not int:
            raise TypeError(f"{name} must be an int or a sequence of ints, got {counts!r}")
        if not least <= count <= MOST_PIECES:
            raise ValueError(f"{name} must be from {least} to {MOST_PIECES}, the number of 8-bit codes, got {count}")
    return list(several)


def _require_finite_square(values: list[float], weights: list[float]) -> None:
    """The largest error there can be is a number."""
    range_ = max(values) - min(values)
    if not math.isfinite(sum(weights) * range_ * range_):
        raise ValueError(
            f"values and weights must have a finite error, got values from {min(values)} to {max(values)} and weights "
            f"up to {max(weights)}; use larger units"
        )
