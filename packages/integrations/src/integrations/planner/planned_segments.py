"""``PlannedSegment``: operators that are repeated together, for people who read a plan."""

from __future__ import annotations

from dataclasses import dataclass

from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule


@dataclass(frozen=True)
class PlannedSegment:
    """Operators that are repeated together, when backward first needs one of their results.

    Attributes:
        first, last: paths of the modules in whose forward the first and the last of them run.
        operators: how many there are.
        nbytes: bytes of their results that backward reads and autograd would have kept.
        seconds: the time that they take, as modelled.
        inner: whether the segment is nested: it makes what a larger segment does not hold. The larger one is repeated
            first if it makes what these operators read.
    """

    first: str
    last: str
    operators: int
    nbytes: int
    seconds: float
    inner: bool = False


def planned_segments(graph: Graph, schedule: Schedule) -> tuple[PlannedSegment, ...]:
    """The segments of a schedule, in the order of the forward."""
    values, ops = graph.values, graph.ops
    members: dict[tuple[int, bool], list[int]] = {}
    for number, op in enumerate(schedule.ops):
        for segment, inner in ((op.segment, False), (op.inner, True)):
            if segment >= 0:
                members.setdefault((segment, inner), []).append(number)
    return tuple(
        PlannedSegment(
            ops[numbers[0]].module,
            ops[numbers[-1]].module,
            len(numbers),
            sum(
                values[value].nbytes
                for number in numbers
                for value in ops[number].makes
                if value in schedule.recomputed and values[value].saved >= 0 and (value in schedule.inner) == inner
            ),
            sum(ops[number].repeat_seconds for number in numbers),
            inner,
        )
        for (_, inner), numbers in sorted(members.items())
    )
