"""``allocate_bits`` and ``allocate``: which tensor gets how many bits of a budget of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import actcore._native as _native

Choice = TypeVar("Choice")

_STEPS = 4_000_000


@dataclass(frozen=True)
class Allocation(Generic[Choice]):
    """A choice for each tensor, with a bound on how far it is from the optimum.

    Attributes:
        choices: one entry for each tensor, in the given order: its width (``allocate_bits``; ``None`` means kept
            exactly) or the index of its choice (``allocate``).
        cost: the sum of the costs of the choices.
        lower_bound: no choices within the budget cost less. Equals ``cost`` if that is proven optimal, to a relative
            1e-9.
        nbytes: the bytes of all choices together, at most the budget.
        steps: the number of partial solutions that the solver examined.
    """

    choices: tuple[Choice, ...]
    cost: float
    lower_bound: float
    nbytes: int
    steps: int

    @property
    def gap(self) -> float:
        """The cost is at most ``1 + gap`` times the optimum: 0 if it is proven optimal."""
        if self.cost == self.lower_bound:
            return 0.0
        return self.cost / self.lower_bound - 1 if self.lower_bound else math.inf


def allocate(
    costs: Sequence[Sequence[float]],
    nbytes: Sequence[Sequence[int]],
    budget: int,
    *,
    max_steps: int = _STEPS,
) -> Allocation[int]:
    """Pick one choice for each tensor, so that the total cost is minimal and the bytes fit a budget.

    This is the multiple-choice knapsack problem: minimize ``sum(costs[i][choices[i]])`` subject to
    ``sum(nbytes[i][choices[i]]) <= budget``. The linear relaxation, solved greedily on each tensor's lower convex hull
    (Zemel, "The linear multiple choice knapsack problem", Operations Research 28, 1980), gives a first solution and a
    lower bound. Dynamic programming over the few tensors that remain open (after Pisinger, "A minimal algorithm for the
    multiple-choice knapsack problem", EJOR 83, 1995) closes the gap, most often to the optimum. If ``max_steps`` ends
    it early, the remaining ``gap`` is a fraction of one tensor's cost.

    No tensor could get a cheaper choice with the bytes that are left over. Among choices of equal cost, the one with
    the fewest bytes is taken, and among those the first. A larger budget never costs more, up to ``gap``.

    Args:
        costs: for each tensor, the cost of each of its choices: finite, not negative, in any common unit. Rows may have
            different lengths.
        nbytes: for each tensor, the bytes of each choice, metadata included.
        budget: bytes for all tensors together. Bytes beyond the most expensive choices stay unused.
        max_steps: bounds the time (50 to 100 ns a step) and the memory (12 bytes a step).

    Raises:
        TypeError: a cost is not a number, or a size, the budget or ``max_steps`` is not an int.
        ValueError: rows do not match or are empty, a cost is negative or not finite, a size is negative, or the budget
            is below the sum of the smallest choices. The message says which.
    """
    _require_rows("costs", costs, "nbytes", nbytes)
    table = []
    for i, (cost_row, byte_row) in enumerate(zip(costs, nbytes, strict=True)):
        _require_rows(f"costs[{i}]", cost_row, f"nbytes[{i}]", byte_row, each="choice")
        table.append([_as_cost(f"costs[{i}][{j}]", cost) for j, cost in enumerate(cost_row)])
        for j, cost in enumerate(table[-1]):
            if not math.isfinite(cost):
                raise ValueError(f"costs[{i}][{j}] must be finite, got {cost}; leave out what must not be chosen")
        _require_sizes(f"nbytes[{i}]", dict(enumerate(byte_row)))
    _require_finite_sum("costs", [max(row) for row in table])
    _require_budget([list(row) for row in nbytes], budget, max_steps)
    return _solve(table, nbytes, budget, max_steps)


def allocate_bits(
    sensitivities: Sequence[float],
    nbytes: Sequence[Mapping[int | None, int]],
    budget: int,
    *,
    max_steps: int = _STEPS,
) -> Allocation[int | None]:
    """Give each tensor a bit width, so that the variance of the gradient is minimal and the bytes fit a budget.

    Minimizes ``sum(C / (2**bits - 1)**2)``, the variance that stochastic rounding of all saved tensors adds to the
    gradient. ``C`` is a tensor's sensitivity: the variance that it would add with steps as wide as the range of its
    groups. The problem is that of ActNN (Chen et al., ICML 2021) and GACT (Liu et al., ICML 2022), with the bytes that
    are really stored instead of bits times elements; ``allocate`` solves it.

    Tensors are served in three rounds. Each round uses the bytes that the earlier rounds leave, and no tensor goes
    below its smallest width:

    1. tensors whose ``C`` is NaN or infinite: the effect of fewer bits is unknown, so they get the most bits that fit;
    2. tensors with a finite ``C`` above 0;
    3. tensors with ``C == 0``: more bits have no known use for them.

    The sensitivities of the first and the last round do not distinguish tensors. In these rounds the sizes of the
    tensors replace the sensitivities, which gives large and small tensors equal widths as far as the bytes allow.

    Args:
        sensitivities: ``C`` of each tensor, not negative, in any common unit.
        nbytes: for each tensor, the bytes of each width that it may have, metadata included
            (``{bits: GroupAffine(bits).stored_bytes(numel, dtype) for bits in range(1, 9)}``). Widths are 1 to 8;
            ``None`` means that the tensor is kept exactly, at cost 0.
        budget: bytes for all tensors together.
        max_steps: bounds time and memory of each round, as in ``allocate``.

    Returns:
        The widths. ``cost`` and ``lower_bound`` cover the tensors with a finite sensitivity, given the bytes that the
        others take.

    Raises:
        TypeError: a sensitivity is not a number, a row of ``nbytes`` is not a mapping, or a size, the budget or
            ``max_steps`` is not an int.
        ValueError: the numbers of tensors differ, a sensitivity is negative, a width is out of range, a size is
            negative, or the budget is below the sum of the smallest widths. The message says which.
    """
    _require_rows("sensitivities", sensitivities, "nbytes", nbytes)
    importance = [_as_cost(f"sensitivities[{i}]", value) for i, value in enumerate(sensitivities)]
    _require_finite_sum("sensitivities", [value for value in importance if math.isfinite(value)])
    for i, sizes in enumerate(nbytes):
        if not isinstance(sizes, Mapping):
            raise TypeError(f"nbytes[{i}] must map each width to its bytes, such as {{2: 100, 4: 200}}, got {sizes!r}")
        for bits in sizes:
            if bits is not None and (type(bits) is not int or not 1 <= bits <= 8):
                raise ValueError(
                    f"widths in nbytes[{i}] must be ints from 1 to 8, or None for kept exactly, got {bits!r}"
                )
        _require_sizes(f"nbytes[{i}]", sizes)
    _require_budget([list(sizes.values()) for sizes in nbytes], budget, max_steps)

    # Of widths that take the same bytes, as those of an empty tensor do, the solver takes the first.
    widths = [sorted(sizes, key=lambda bits: math.inf if bits is None else bits, reverse=True) for sizes in nbytes]
    unknown = [i for i, value in enumerate(importance) if not math.isfinite(value)]
    known = [i for i, value in enumerate(importance) if 0 < value < math.inf]
    idle = [i for i, value in enumerate(importance) if value == 0]
    for i in (*unknown, *idle):
        importance[i] = float(max(nbytes[i].values()) - min(nbytes[i].values()))

    chosen: dict[int, int | None] = {}
    left = budget - sum(min(sizes.values()) for sizes in nbytes)
    rounds = []
    for tensors in (unknown, known, idle):
        least = sum(min(nbytes[i].values()) for i in tensors)
        solved = _solve(
            [[_variance(importance[i], bits) for bits in widths[i]] for i in tensors],
            [[nbytes[i][bits] for bits in widths[i]] for i in tensors],
            left + least,
            max_steps,
        )
        chosen |= {i: widths[i][choice] for i, choice in zip(tensors, solved.choices, strict=True)}
        left += least - solved.nbytes
        rounds.append(solved)
    return Allocation(
        choices=tuple(chosen[i] for i in range(len(nbytes))),
        cost=rounds[1].cost,
        lower_bound=rounds[1].lower_bound,
        nbytes=sum(solved.nbytes for solved in rounds),
        steps=sum(solved.steps for solved in rounds),
    )


def _variance(sensitivity: float, bits: int | None) -> float:
    return 0.0 if bits is None else sensitivity / (2**bits - 1) ** 2


def _solve(
    costs: Sequence[Sequence[float]], nbytes: Sequence[Sequence[int]], budget: int, max_steps: int
) -> Allocation[int]:
    most = sum(max(row) for row in nbytes)  # a larger budget may not fit in int64
    choices, lower_bound, optimal, steps = _native.allocate(
        [list(row) for row in costs], [list(row) for row in nbytes], min(budget, most), max_steps
    )
    cost = math.fsum(row[choice] for row, choice in zip(costs, choices, strict=True))
    used = sum(row[choice] for row, choice in zip(nbytes, choices, strict=True))
    return Allocation(tuple(choices), cost, cost if optimal else min(lower_bound, cost), used, steps)


def _require_rows(
    name: str, rows: Sequence[object], other_name: str, other: Sequence[object], each: str = "tensor"
) -> None:
    for argument, value in ((name, rows), (other_name, other)):
        if not isinstance(value, Sequence):
            raise TypeError(f"{argument} must be a sequence, one entry for each {each}, got {value!r}")
    if len(rows) != len(other):
        raise ValueError(
            f"{name} and {other_name} must have one entry for each {each}, got {len(rows)} and {len(other)}"
        )


def _as_cost(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be an int or a float, got {value!r}; convert tensors with .tolist()")
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be within the range of a float, got {value}; use a larger unit") from None


def _require_finite_sum(name: str, costs: Sequence[float]) -> None:
    if not math.isfinite(sum(costs)):
        raise ValueError(f"{name} must have a finite sum, got numbers up to {max(costs)}; use a larger unit")


def _require_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")


def _require_sizes(name: str, sizes: Mapping[int, int] | Mapping[int | None, int]) -> None:
    if not sizes:
        raise ValueError(f"{name} must have at least one choice, got none; leave out tensors without choices")
    for choice, size in sizes.items():
        _require_int(f"{name}[{choice}]", size)
        if size < 0:
            raise ValueError(f"{name}[{choice}] must not be negative, got {size}; it is a number of bytes")


def _require_budget(sizes: Sequence[Sequence[int]], budget: int, max_steps: int) -> None:
    _require_int("budget", budget)
    _require_int("max_steps", max_steps)
    if not 0 <= max_steps < 1 << 40:
        raise ValueError(f"max_steps must be from 0 to 2**40 - 1, got {max_steps}; the default is {_STEPS}")
    most = sum(max(row) for row in sizes)
    if most >= 1 << 63:
        raise ValueError(f"nbytes must add up to less than 2**63 at the largest choices, got {most}; use a larger unit")
    least = sum(min(row) for row in sizes)
    if budget < least:
        raise ValueError(
            f"budget must be at least {least} bytes, the sum of the smallest choices, got {budget}; "
            "raise it, or allow smaller choices"
        )
