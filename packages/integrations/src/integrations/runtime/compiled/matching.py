"""``match``: which of a plan's values the operators of a trace make, which are nearly those of the plan.

``torch.compile`` traces a forward that is not quite the one of eager code: a dropout is one operator there and four
here, BatchNorm has another name, counters are counted up. What is matched wrongly costs memory and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

Shape = tuple[int | None, ...]
"""``None``: of any size."""

_REACH = 64
"""Operators by which the two may differ in one place."""


@dataclass(frozen=True)
class Operator:
    """An operator of a plan or of a trace.

    Attributes:
        name: the ATen operator.
        shapes: of its results; ``None`` for those that are not compared.
        values: what they are in the plan; ``None`` for what is not known.
    """

    name: str
    shapes: tuple[Shape | None, ...]
    values: tuple[int | None, ...]

    def of_any_sizes(self) -> Operator:
        """The same with results of any sizes."""
        shapes = tuple(None if shape is None else (None,) * len(shape) for shape in self.shapes)
        return replace(self, shapes=shapes)


def match(planned: Sequence[Operator], traced: Sequence[Operator]) -> list[tuple[int | None, ...]]:
    """Of each operator of a trace, the values of the plan that its results are; ``None`` for those it does not have.

    Operators of the same name and shapes are the same, in order. Between them, results go by their shapes, from the
    last one on: of what a dropout computes, the last is the result.

    Args:
        planned: the plan's operators.
        traced: those of the trace, without views.
    """
    found: list[tuple[int | None, ...]] = []
    here = there = 0
    while there < len(traced):
        if here < len(planned) and _same(planned[here], traced[there]):
            found.append(_in_order(planned[here].values, len(traced[there].shapes)))
            here, there = here + 1, there + 1
            continue
        skip, skipped = _meeting(planned[here:], traced[there:])
        found += _by_shape(planned[here : here + skip], traced[there : there + skipped])
        here, there = here + skip, there + skipped
    return found


def _meeting(planned: Sequence[Operator], traced: Sequence[Operator]) -> tuple[int, int]:
    """How many operators of each to pass over until they are the same again; all, if they never are."""
    for both in range(1, 2 * _REACH):
        for skip in range(max(0, both - _REACH), min(both, _REACH) + 1):
            if skip < len(planned) and both - skip < len(traced) and _same(planned[skip], traced[both - skip]):
                return skip, both - skip
    return len(planned), len(traced)


def _same(one: Operator, other: Operator) -> bool:
    if _plain(one.name) != _plain(other.name):
        return False
    ours, theirs = ([shape for shape in op.shapes if shape is not None] for op in (one, other))
    return len(ours) == len(theirs) and all(map(_fits, ours, theirs))


def _plain(name: str) -> str:
    """Without the library and the overload; in place or not is the same."""
    return name.split(".")[1].rstrip("_") if name.count(".") > 1 else name


def _fits(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(
        size == found or size is None or found is None for size, found in zip(one, other, strict=True)
    )


def _in_order(values: tuple[int | None, ...], results: int) -> tuple[int | None, ...]:
    return values if len(values) == results else (values[0],) * results


def _by_shape(planned: Sequence[Operator], traced: Sequence[Operator]) -> list[tuple[int | None, ...]]:
    """Matches results of operators that are not the same."""
    left = [
        (shape, value)
        for op in planned
        if len(op.shapes) == len(op.values)
        for shape, value in zip(op.shapes, op.values, strict=True)
        if shape is not None
    ]
    found: list[tuple[int | None, ...]] = []
    for op in reversed(traced):
        values: list[int | None] = []
        for shape in op.shapes:
            places = [] if shape is None else [n for n, (other, _) in enumerate(left) if _fits(other, shape)]
            values.append(left.pop(places[-1])[1] if places else None)
        found.append(tuple(values))
    return found[::-1]
