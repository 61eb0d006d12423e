"""``Recording``: what a recorder has seen of a training step, and the parts of the graph that follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from integrations._utils.chunked_loss import OPERATOR
from integrations.capture.costs.calls import DistinctCalls
from integrations.capture.costs.operator_costs import Costs
from integrations.capture.dispatch.decisions import Decides
from integrations.capture.graphs.graph import Op, Step, Value

PASSING = -1
"""In the place of a value: memory that backward makes."""


@dataclass
class RecordedValue:
    """A ``Value`` whose fields are filled in during the recording."""

    nbytes: int
    producer: int
    reuses: int = -1
    until: int = -1
    saved: int = -1
    reused: bool = False


@dataclass
class RecordedOp:
    """An ``Op`` whose fields are filled in during the recording.

    Attributes:
        call: its place among the distinct calls.
        scratch: bytes that it takes while it runs, beside those of the call.
        outside: storages that it reads and that hold no values.
        decides: how it decides by the elements of what it reads.
        rounded: the values that it reads and that a repetition may find rounded.
        amplified: the values whose errors it may amplify without bound, if the first of them is slightly off; ``None``
            for one that is no value.
        reads_elements: whether its results depend on more than shapes.
        packs: what autograd saves after it.
    """

    name: str
    module: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    call: int
    scratch: int
    repeatable: bool
    shapes: tuple[tuple[int, ...], ...]
    outside: set[int]
    decides: Decides = Decides.NOTHING
    rounded: frozenset[int] = frozenset()
    amplified: tuple[int | None, ...] = ()
    reads_elements: bool = True
    packs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class OperatorRun:
    """An operator of backward.

    Attributes:
        step: the step in which it runs.
        live: bytes that backward has made and that are alive while it runs, its results included.
        call: its place among the distinct calls.
    """

    step: int
    live: int
    call: int


class Parts(NamedTuple):
    """The entries of a graph with these names."""

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    other: tuple[int, ...]
    standing: tuple[int, ...]


@dataclass
class Recording:
    """A forward and its backward.

    Attributes:
        values, ops: those of the forward.
        steps: of backward: what each reads.
        other: by step: the bytes that backward has made when the step begins.
        standing: by step: how many of these bytes are gradients of parameters that are complete.
        runs: the operators of backward.
        calls: the distinct calls of forward and backward.
        changed: storages that hold no values and were written.
        apart: by operator of the forward: the live bytes of tensors that are no values; see ``Apart``.
    """

    values: list[RecordedValue] = field(default_factory=list)
    ops: list[RecordedOp] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)
    other: list[int] = field(default_factory=list)
    standing: list[int] = field(default_factory=list)
    runs: list[OperatorRun] = field(default_factory=list)
    calls: DistinctCalls = field(default_factory=DistinctCalls)
    changed: set[int] = field(default_factory=set)
    apart: list[int] = field(default_factory=list)

    @property
    def events(self) -> int:
        """How many events there are so far."""
        return len(self.ops) + len(self.steps)

    def reads_chunked_loss(self, reads: Iterable[int]) -> bool:
        """Return whether one of these values is a result of the loss in chunks. Its gradients in float32 are cast. If
        backward repeated the cast, it would need those in float32, which take twice the memory of the cast ones."""
        name = OPERATOR.replace("::", ".")
        return any(self.ops[self.values[value].producer].name.startswith(name) for value in reads)

    def note_apart(self, live: int) -> None:
        """Record the live bytes apart from values after an operator of the forward. The operator may make no value."""
        if live:
            self.apart += [0] * (len(self.ops) + 1 - len(self.apart))
            self.apart[-1] = max(self.apart[-1], live)

    def parts(self, costs: Costs) -> Parts:
        """The parts of a graph.

        Args:
            costs: called once, with all distinct calls.
        """
        taken = costs(self.calls.distinct)
        last = self._last()
        deciding, exact = self._decisions()
        ops: list[Op] = []
        for number, op in enumerate(self.ops):
            lost = any(
                self.values[value].reused and not ops[self.values[value].producer].repeatable for value in op.reads
            )
            repeatable = op.repeatable and not lost and not (op.outside & self.changed)
            packs = tuple(dict.fromkeys(last[value] for value in op.packs))
            cost = taken[op.call]
            scratch = op.scratch + cost.scratch
            ops.append(
                Op(
                    name=op.name,
                    module=op.module,
                    reads=op.reads,
                    makes=op.makes,
                    seconds=cost.seconds,
                    repeatable=repeatable,
                    packs=packs,
                    shapes=op.shapes,
                    scratch=scratch,
                    decides=number in deciding,
                )
            )
        other, seconds = list(self.other), [0.0] * len(self.steps)
        for run in self.runs:
            other[run.step] = max(other[run.step], run.live + taken[run.call].scratch)
            seconds[run.step] += taken[run.call].seconds
        steps = tuple(
            Step(tuple(dict.fromkeys(last[value] for value in reads)), time)
            for reads, time in zip(self.steps, seconds, strict=True)
        )
        none = (0,) * len(ops)
        apart = (*self.apart[: len(ops)], *none)[: len(ops)]
        return Parts(tuple(ops), self._values(last, exact), steps, (*apart, *other), (*none, *self.standing))

    def _decisions(self) -> tuple[set[int], set[int]]:
        """The operators that may decide otherwise when they are repeated on rounded values, and the values that must
        stay exact: those that go with what was decided, and those whose errors would be amplified without bound."""
        # What was decided is kept. Then only that comes out otherwise which follows from it and may be rounded itself.
        other = {value for op in self.ops for value in op.rounded}
        deciding: set[int] = set()
        exact: set[int] = set()
        for number, op in enumerate(self.ops):
            if other.intersection(op.amplified[:1]):
                exact.update(other.intersection(op.amplified))
                other.difference_update(op.amplified)
            met = other.intersection(op.reads) if op.reads_elements else ()
            if met and op.decides is Decides.NOTHING:
                other.update(op.makes)
            elif met:
                deciding.add(number)
            if met and op.decides is Decides.EXACTLY:
                exact.update(met, op.makes)
        return deciding, exact

    def _last(self) -> list[int]:
        """By value: what its memory holds in the end."""
        last = list(range(len(self.values)))
        for number in range(len(self.values) - 1, -1, -1):
            reuses = self.values[number].reuses
            if reuses >= 0:
                last[reuses] = last[number]
        return last

    def _values(self, last: list[int], exact: set[int]) -> tuple[Value, ...]:
        """The values. What was saved before another part of its memory was written counts as saved as the last value
        there."""
        saved = [-1] * len(self.values)
        for number, value in enumerate(self.values):
            saved[last[number]] = max(saved[last[number]], value.saved)
        return tuple(
            Value(value.nbytes, value.producer, value.reuses, value.until, end, number in exact)
            for number, (value, end) in enumerate(zip(self.values, saved, strict=True))
        )
