"""``Schedule``: what a choice of values to keep means for each operator of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from integrations.checkpoint.graph import Graph
from integrations.checkpoint.sharding import within_units


@dataclass(frozen=True)
class Planned:
    """An operator as it is expected.

    Attributes:
        name: the ATen operator.
        module: path of the module in whose forward it runs.
        shapes: of its results; ``None`` where any will do.
        makes: values, in order.
        segment: the segment that repeats it; -1 where it is never repeated.
    """

    name: str
    module: str
    shapes: tuple[tuple[int, ...], ...] | None
    makes: tuple[int, ...]
    segment: int


@dataclass(frozen=True)
class Schedule:
    """A graph's operators with their segments.

    Attributes:
        ops: in order.
        recomputed: the values that are made again instead of being kept, for themselves or for others.
        becomes: values whose memory is taken over, and by which.
        graph: of which it is.
        kept: as it was asked for.
        any_sizes: whether it is for inputs of any sizes.
    """

    ops: tuple[Planned, ...]
    recomputed: frozenset[int]
    becomes: Mapping[int, int]
    graph: Graph = field(repr=False)
    kept: frozenset[int] = field(repr=False)
    any_sizes: bool = False
    _within: dict[frozenset[str], Schedule] = field(default_factory=dict, repr=False, compare=False)

    def within(self, units: frozenset[str]) -> Schedule:
        """The schedule in which no repetition leaves a unit of ``fully_shard``: what enters and leaves one is kept."""
        if not units:
            return self
        if units not in self._within:
            made = Schedule.of(within_units(self.graph, units), self.kept)
            self._within[units] = made.of_any_sizes() if self.any_sizes else made
        return self._within[units]

    def is_made_again(self, value: int) -> bool:
        """Whether what the memory of a value holds in the end is not kept."""
        while value in self.becomes:
            value = self.becomes[value]
        return value in self.recomputed

    def of_any_sizes(self) -> Schedule:
        """The same for inputs of other sizes."""
        ops = tuple(replace(op, shapes=None) for op in self.ops)
        return replace(self, ops=ops, any_sizes=True, _within={})

    @classmethod
    def of(cls, graph: Graph, kept: Collection[int]) -> Schedule:
        """The schedule by which these values are kept, and the others if they have to be.

        Kept is also what cannot be made again. What backward needs neither by itself nor for what it needs is left
        alone. A value whose memory an operator takes over cannot be kept: it is made again if an operator that reads it
        is repeated.

        Args:
            graph: of the model.
            kept: numbers of values.

        Raises:
            ValueError: ``kept`` names a value that the graph does not have.
        """
        kept = frozenset(kept)
        if not kept <= set(range(len(graph.values))):
            unknown = min(kept - set(range(len(graph.values))))
            raise ValueError(f"kept must name values of the graph, 0 to {len(graph.values) - 1}, got {unknown}")
        taken_over = {value.reuses: number for number, value in enumerate(graph.values) if value.reuses >= 0}
        free = {
            number
            for number, value in enumerate(graph.values)
            if number in taken_over or (number not in kept and graph.ops[value.producer].repeatable)
        }
        recomputed = {value for value in free - taken_over.keys() if graph.values[value].saved >= 0}
        segments = _Sets(len(graph.ops))
        for number in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[number]
            if recomputed.isdisjoint(op.makes):
                continue
            for value in free.intersection(op.reads):
                recomputed.add(value)
                segments.join(number, graph.values[value].producer)
        ops = tuple(
            Planned(
                op.name,
                op.module,
                op.shapes,
                op.makes,
                -1 if recomputed.isdisjoint(op.makes) else segments.first(number),
            )
            for number, op in enumerate(graph.ops)
        )
        return cls(ops, frozenset(recomputed), taken_over, graph, kept)


class _Sets:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def first(self, number: int) -> int:
        """The smallest number of its set."""
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.first(one), self.first(other)))
        self._parents[other] = one
