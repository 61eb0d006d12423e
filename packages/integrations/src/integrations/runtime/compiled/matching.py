"""``match``: finds the values of a plan in a trace whose operators are nearly those of the plan.

``torch.compile`` traces a forward that differs a little from the eager one: a dropout is one operator there and four
here, BatchNorm has another name, counters are counted up. A wrong match of a plan that rounds nothing
costs memory and nothing else; one of a plan that rounds may take the bits of another value of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

Shape = tuple[int | None, ...]
"""The sizes of a tensor; ``None`` for a dimension of any size."""

_REACH = 64
"""By how many operators the two may differ in one place."""


# What makes masks and positions, and what copies: a trace may have more or fewer of them than eager code, which asks
# Python where a graph cannot, and hands a mask to attention in another form.
_ASIDE = frozenset(
    (
        *("arange", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like", "new_ones", "new_zeros"),
        *("scalar_tensor", "empty", "eq", "ne", "le", "lt", "ge", "gt", "all", "any", "isin", "cumsum"),
        *("bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not", "tril", "triu"),
        *("where", "masked_fill", "index", "clone", "_to_copy"),
    )
)

_DROPOUT = ("empty_like", "bernoulli", "div", "mul")
"""The operators of dropout in eager code on a CPU. A trace has ``native_dropout``."""


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


def is_same_path(planned: Sequence[Operator], traced: Sequence[Operator]) -> bool:
    """Return whether a trace is certainly of the planned forward: both have the same operators, apart from those of
    dropout, of batch normalization and of masks.

    Args:
        planned, traced: as for ``match``.
    """
    ours, theirs = _as_compiled(planned), _as_compiled(traced)
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _as_compiled(ops: Sequence[Operator]) -> list[Operator]:
    """Return operators in the same form for eager code and for a trace: dropout and batch normalization as one operator
    with its output alone, without counters of batches, and without what makes masks and copies."""
    names = [_plain(op.name) for op in ops]
    found, here = list[Operator](), 0
    while here < len(ops):
        op, name = ops[here], names[here]
        if tuple(names[here : here + len(_DROPOUT)]) == _DROPOUT:
            here += len(_DROPOUT) - 1
            op, name = ops[here], "native_dropout"
        here += 1
        # Positions are counted in one dimension.
        if name in _ASIDE or (name == "add" and all(shape is not None and len(shape) < 2 for shape in op.shapes)):
            continue
        if name == "native_dropout" or "batch_norm" in name:
            name = "batch_norm" if "batch_norm" in name else name
            op = Operator(f"aten.{name}.default", op.shapes[:1], op.values[:1])
        found.append(op)
    return found


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
