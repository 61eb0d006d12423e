"""``Schedule``: what a choice of kept values means for each operator of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from integrations.capture.dispatch.operators import WRITERS
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.sharding import within_units
from integrations.policies.stores import HostCopies, Store


@dataclass(frozen=True, slots=True)
class Planned:
    """An operator as it is expected.

    Attributes:
        name: the ATen operator.
        module: path of the module in whose forward it runs.
        shapes: the shapes of its results; ``None`` where any will do.
        makes: the values that it makes, in order.
        segment: the segment that repeats it; -1 where none does.
        inner: the inner segment that repeats it, once more where ``segment`` does, too; -1 where none does.
    """

    name: str
    module: str
    shapes: tuple[tuple[int, ...], ...] | None
    makes: tuple[int, ...]
    segment: int
    inner: int = -1


@dataclass(frozen=True)
class Schedule:
    """A graph's operators with their segments.

    Attributes:
        ops: in order.
        recomputed: the values that are recomputed instead of being kept, for their own readers or for other values.
        becomes: by value whose memory is taken over: the value that takes it over.
        inner: those of the recomputed values that inner segments make: an outer segment does not hold them.
        graph: the graph that it belongs to.
        kept, held: as they were asked for.
        any_sizes: whether it is for inputs of any sizes.
        stores: by what a value's memory holds in the end: its store, if it does not wait as it is.
        copies: of values whose store is on the host: how far their copies may run beside the computation. The
            computation waits for the copies of others.
    """

    ops: tuple[Planned, ...]
    recomputed: frozenset[int]
    becomes: Mapping[int, int]
    inner: frozenset[int]
    graph: Graph = field(repr=False)
    kept: frozenset[int] = field(repr=False)
    held: frozenset[int] | None = field(repr=False)
    any_sizes: bool = False
    stores: Mapping[int, Store] = field(default_factory=dict)
    copies: Mapping[int, HostCopies] = field(default_factory=dict)
    _within: dict[frozenset[str], Schedule] = field(default_factory=dict, repr=False, compare=False)

    def within(self, units: frozenset[str]) -> Schedule:
        """The schedule in which no repetition leaves a unit of ``fully_shard``: the values that enter and leave a unit
        are kept."""
        if not units:
            return self
        if units not in self._within:
            made = Schedule.of(within_units(self.graph, units), self.kept, self.held, self.stores)
            self._within[units] = made.of_any_sizes() if self.any_sizes else made
        return self._within[units]

    @cached_property
    def where_rounded(self) -> Schedule:
        """The schedule for kept values that are rounded: nothing is decided a second time."""
        if self.graph.where_rounded is self.graph:
            return self
        made = Schedule.of(self.graph.where_rounded, self.kept, self.held, self.stores)
        return made.of_any_sizes() if self.any_sizes else made

    @cached_property
    def communicates(self) -> bool:
        """Whether the forward has collectives that write into tensors that they are given."""
        return any(op.name.startswith(f"{WRITERS}.") for op in self.ops)

    @property
    def needs_tape(self) -> bool:
        """Whether each forward has to be followed operator by operator, and not only the first: if something is
        recomputed, or what is saved may have other shapes than before."""
        return bool(self.recomputed) or self.any_sizes

    @cached_property
    def coarse(self) -> frozenset[int]:
        """The values that wait in a store that is not precise enough for any reader. See ``Store.fine``."""
        known = range(len(self.graph.values))
        return frozenset(value for value in known if (store := self.store_of(value)) is not None and not store.fine)

    def is_recomputed(self, value: int) -> bool:
        """Whether what the memory of a value holds in the end is recomputed."""
        return self.final(value) in self.recomputed

    def is_recomputed_inside(self, value: int) -> bool:
        """Whether an inner segment recomputes it."""
        return self.final(value) in self.inner

    def store_of(self, value: int) -> Store | None:
        """The store in which what the memory of a value holds in the end waits, be it kept or recomputed; ``None`` if
        it waits as it is."""
        return self.stores.get(self.final(value))

    def final(self, value: int) -> int:
        """What the memory of a value holds in the end."""
        while value in self.becomes:
            value = self.becomes[value]
        return value

    def of_any_sizes(self) -> Schedule:
        """The schedule for inputs of other sizes."""
        ops = tuple(replace(op, shapes=None) for op in self.ops)
        return replace(self, ops=ops, any_sizes=True, copies={}, _within={})

    @classmethod
    def of(
        cls,
        graph: Graph,
        kept: Collection[int],
        held: Collection[int] | None = None,
        stores: Mapping[int, Store] | None = None,
    ) -> Schedule:
        """The schedule that keeps these values, and others if they have to be kept.

        A value that cannot be recomputed is kept, too. A value that backward needs neither itself nor to recompute
        others is left alone. A value whose memory an operator takes over cannot be kept: it is recomputed if an
        operator that reads it is repeated.

        Args:
            graph: the model's.
            kept: numbers of values.
            held: numbers of values that a segment holds when it has recomputed them. The others are recomputed once
                more, by inner segments, from values that are kept or held. ``None``: all are held.
            stores: the stores of values that do not wait as they are.

        Raises:
            ValueError: ``kept``, ``held`` or ``stores`` names a value that the graph does not have.
        """
        known = range(len(graph.values))
        stores = {} if stores is None else dict(stores)
        _known("stores", stores, known)
        kept, asked = _known("kept", kept, known), None if held is None else _known("held", held, known)
        taken_over = {value.reuses: number for number, value in enumerate(graph.values) if value.reuses >= 0}
        free = {
            number
            for number, value in enumerate(graph.values)
            if number in taken_over or (number not in kept and graph.ops[value.producer].repeatable)
        }
        staying = (free if asked is None else free & asked) - taken_over.keys()
        wanted = {value for value in free - taken_over.keys() if graph.values[value].saved >= 0}
        outer, inner = wanted & staying, wanted - staying  # what each kind of segment has to make
        outside, inside = _Sets(len(graph.ops)), _Sets(len(graph.ops))
        for number in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[number]
            for value in free.intersection(op.reads):
                if not inner.isdisjoint(op.makes):
                    if value in staying:
                        outer.add(value)
                    else:
                        inner.add(value)
                        inside.join(number, graph.values[value].producer)
            for value in free.intersection(op.reads):
                if not outer.isdisjoint(op.makes):
                    outer.add(value)
                    outside.join(number, graph.values[value].producer)
        ops = tuple(
            Planned(
                op.name,
                op.module,
                op.shapes,
                op.makes,
                -1 if outer.isdisjoint(op.makes) else outside.first(number),
                -1 if inner.isdisjoint(op.makes) else inside.first(number),
            )
            for number, op in enumerate(graph.ops)
        )
        return cls(ops, frozenset(outer | inner), taken_over, frozenset(inner), graph, kept, asked, stores=stores)


def _known(name: str, numbers: Collection[int], known: range) -> frozenset[int]:
    unknown = set(numbers) - set(known)
    if unknown:
        raise ValueError(f"{name} must name values of the graph, 0 to {len(known) - 1}, got {min(unknown)}")
    return frozenset(numbers)


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
