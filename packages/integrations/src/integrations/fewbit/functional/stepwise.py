"""``stepwise``: the function whose derivative is the user's step function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

import actcore
from integrations.fewbit.functional.conditions import keeps_few_bits
from integrations.policies.codebooks.options import constant, move_table, trimmed
from integrations.policies.codebooks.steps import StepTable

Numbers = Tensor | Sequence[float]


def stepwise(
    input: Tensor, borders: Numbers, levels: Numbers, parity: bool | None = None, shift: float | None = None
) -> Tensor:
    """Compute the function with this step function as derivative: 0 at 0, continuous, linear between the borders.

    Its gradient is exact, as for ReLU, ``stepwise(x, (0.0,), (0.0, 1.0))``, and takes the bits that distinguish the
    levels.

    Args:
        input: any shape.
        borders: ``Float["k"]``, ascending; or ``Float["k+2"]`` with the ends of the domain, which are ignored.
        levels: ``Float["k+1"]``, at most 256; the derivative between the borders.
        parity: if given, borders and levels are for ``x >= 0``, and those of ``x < 0`` follow. ``True``: the derivative
            is even. ``False``: the derivative minus ``shift`` is odd; for GELU and SiLU the shift is one half.
        shift: see ``parity``; ``None`` for 0.

    Raises:
        ValueError: the numbers of borders and levels do not match, or the borders do not ascend; ``shift`` is given
            without ``parity=False``.
    """
    return piecewise_linear(input, step_table(borders, levels, parity, shift))


def step_table(borders: Numbers, levels: Numbers, parity: bool | None = None, shift: float | None = None) -> StepTable:
    """The steps that ``stepwise`` is given, as a table."""
    if shift is not None and parity is not False:
        raise ValueError(f"shift needs an odd derivative, parity=False, got parity={parity}; leave shift out otherwise")
    inner, steps = (_floats(numbers) for numbers in trimmed(borders, levels))
    if parity is None or parity:
        return StepTable(inner, steps, even=bool(parity))
    if inner and inner[0] < 0:
        raise ValueError(f"borders must not be negative with parity, got {inner[0]}; give those of x >= 0")
    twice = 2 * (shift or 0.0)
    mirrored = tuple(-border for border in reversed(inner)), tuple(twice - step for step in reversed(steps))
    return StepTable((*mirrored[0], 0.0, *inner), (*mirrored[1], *steps))


def piecewise_linear(input: Tensor, table: StepTable) -> Tensor:
    """``stepwise`` of a table."""
    function = _Integral(table)
    if not keeps_few_bits(input):
        return function(input)
    steps = move_table(table, input)
    return actcore.stepwise(input, function, steps.boundaries, steps.levels, even=steps.even, guard="nan")


@dataclass(frozen=True, eq=False)  # torch.compile up to torch 2.11 asks for the hash before the table is there
class _Integral:
    """The integral of the steps from 0 to ``x``."""

    table: StepTable

    def __call__(self, x: Tensor) -> Tensor:
        steps, offsets = move_table(self.table, x), constant(_offsets(self.table), x)
        at = (x.abs() if self.table.even else x).to(offsets.dtype)
        index = torch.bucketize(at, steps.boundaries, out_int32=True, right=True)
        level, offset = steps.levels[index], offsets[index]
        value = torch.where((level == 0) & ~at.isnan(), offset, level * at + offset)  # at an infinity, too
        return (value * x.sign() if self.table.even else value).to(x.dtype)


def _offsets(table: StepTable) -> tuple[float, ...]:
    """What the integral is at 0 on the line of each interval. ``torch.compile`` warns of caches that it looks into."""
    return _computed(table) if torch.compiler.is_compiling() else _kept(table)


def _computed(table: StepTable) -> tuple[float, ...]:
    offsets = [0.0]
    for border, (left, right) in zip(table.boundaries, pairwise(table.levels), strict=True):
        offsets.append(offsets[-1] + (left - right) * border)
    at_zero = offsets[sum(border <= 0 for border in table.boundaries)]
    return tuple(offset - at_zero for offset in offsets)


_kept = lru_cache(maxsize=256)(_computed)


def _floats(numbers: Numbers) -> tuple[float, ...]:
    return tuple(map(float, numbers.tolist() if isinstance(numbers, Tensor) else numbers))
