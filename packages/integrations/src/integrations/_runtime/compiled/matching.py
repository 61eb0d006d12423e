"""``match``: finds the values of a plan in a trace whose operators are nearly those of the plan.

``torch.compile`` traces a forward that differs a little from the eager one: a dropout is one operator there and four
here, BatchNorm has another name, counters are counted up. A wrong match costs memory and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

Shape = tuple[int | None, ...]
"""The sizes of a tensor; ``None`` for a dimension of any size."""

_REACH = 64
"""By how many operators the two may differ in one place."""


_DROPOUT = frozenset({"empty_like", "bernoulli", "div", "mul", "ne"})
"""The operators of dropout in eager code on a CPU, attention's included. A trace has ``native_dropout``."""


@dataclass(frozen=True)
class Operator:
    """An operator of a plan or of a trace.

    Attributes:
        name: the ATen operator.
        shapes: the shapes of its results; ``None`` for results that are not compared.
        values: the plan's values that its results are; ``None`` for results that are not known.
    """

    name: str
    shapes: tuple[Shape | None, ...]
    values: tuple[int | None, ...]

    def of_any_sizes(self) -> Operator:
        """The same operator with results of any sizes."""
        shapes = tuple(None if shape is None else (None,) * len(shape) for shape in self.shapes)
        return replace(self, shapes=shapes)


def match(planned: Sequence[Operator], traced: Sequence[Operator]) -> list[tuple[int | None, ...]]:
    """For each operator of a trace, the values of the plan that its results are; ``None`` for a result that the plan
    does not have.

    Operators of the same name and shapes are the same, in order. Between them, results are matched by their shapes, the
    last one first: of the operators that make up a dropout, the last one makes the result.

    Args:
        planned: the plan's operators.
        traced: the trace's operators, without views.
    """
    found: list[tuple[int | None, ...]] = []
    for ours, theirs, same in _aligned(planned, traced):
        if same:
            found.append(_in_order(ours[0].values, len(theirs[0].shapes)))
        else:
            found += _by_shape(ours, theirs)
    return found


def is_same_path(planned: Sequence[Operator], traced: Sequence[Operator]) -> bool:
    """Return whether a trace is certainly of the planned forward: it has the same operators, but for those of dropout
    and of batch normalization, which are others where torch compiles them.

    Args:
        planned, traced: as for ``match``.
    """
    return all(same or _is_compiled_as(ours, theirs) for ours, theirs, same in _aligned(planned, traced))


def _is_compiled_as(planned: Sequence[Operator], traced: Sequence[Operator]) -> bool:
    """Return whether these operators of a trace are dropouts, batch normalizations and their counters, and as many of
    these are planned."""
    ours = [_plain(op.name) for op in planned]
    theirs = [_plain(op.name) for op in traced if not (_plain(op.name) == "add" and op.shapes == ((),))]
    norms, normed = ([name for name in names if "batch_norm" in name] for names in (ours, theirs))
    dropouts = theirs.count("native_dropout")
    return (
        len(norms) == len(normed)
        and ours.count("bernoulli") == ours.count("mul") == dropouts
        and len(normed) + dropouts == len(theirs)
        and all(name in _DROPOUT for name in ours if name not in norms)
    )


def _aligned(
    planned: Sequence[Operator], traced: Sequence[Operator]
) -> Iterator[tuple[Sequence[Operator], Sequence[Operator], bool]]:
    """Yield the parts of both lists, in order, and whether they are the same: one operator of each list where they are,
    otherwise all up to where they are the same again."""
    here = there = 0
    while there < len(traced):
        if here < len(planned) and _same(planned[here], traced[there]):
            skip, skipped, same = 1, 1, True
        else:
            (skip, skipped), same = _meeting(planned[here:], traced[there:]), False
        yield planned[here : here + skip], traced[there : there + skipped], same
        here, there = here + skip, there + skipped
    if here < len(planned):
        yield planned[here:], [], False


def _meeting(planned: Sequence[Operator], traced: Sequence[Operator]) -> tuple[int, int]:
    """How many operators of each list to skip until the two agree; all, if they never do."""
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
    """The operator's name without library, overload and the underscore of in-place operators."""
    return name.split(".")[1].rstrip("_") if name.count(".") > 1 else name


def _fits(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(
        size == found or size is None or found is None for size, found in zip(one, other, strict=True)
    )


def _in_order(values: tuple[int | None, ...], results: int) -> tuple[int | None, ...]:
    return values if len(values) == results else (values[0],) * results


def _by_shape(planned: Sequence[Operator], traced: Sequence[Operator]) -> list[tuple[int | None, ...]]:
    """Matches the results of operators that differ by their shapes."""
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
