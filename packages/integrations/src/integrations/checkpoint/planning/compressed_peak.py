"""The peak of a step that stores what it keeps, and what it has made again, in fewer bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from integrations.checkpoint.graphs.entries import of_type
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.schedule import Schedule


@dataclass(frozen=True)
class StoredBytes:
    """Bytes of values in their stored form. Values that are not in it are kept as they are.

    Attributes:
        saved: as autograd saves them.
        read: where a repetition reads them, too, which may need more.
        passing: what storing them takes while it runs.
        forward: what the forward stores of them, whether they are made again or not: what backward decides by.
    """

    saved: Mapping[int, int]
    read: Mapping[int, int]
    passing: Mapping[int, int]
    forward: Mapping[int, int] = field(default_factory=dict)

    def content(self) -> dict[str, list[tuple[int, int]]]:
        """It as a JSON object."""
        return {name: sorted(sizes.items()) for name, sizes in vars(self).items()}

    @classmethod
    def from_content(cls, content: Any) -> StoredBytes:
        """Of such a JSON object.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        return cls(
            **{name: dict(of_type(tuple[tuple[int, ...], ...], given, name)) for name, given in dict(content).items()}
        )


class CompressedPeak:
    """Runs through forward and backward in numbers, as ``actcore.simulate`` does, for choices of what to keep.

    A value that is kept lies in memory as it is as long as the forward holds it, and from when it was made to its last
    reader in its stored form; where somebody reads that, it is there as it is once more meanwhile. What a repetition
    makes for backward is stored when the repetition needs it no more.

    Args:
        graph: of the model.
        stored: sizes.
    """

    def __init__(self, graph: Graph, stored: StoredBytes) -> None:
        self._graph = graph
        values = graph.values
        self._raw = [value.nbytes for value in values]
        self._saved = [min(stored.saved.get(number, size), size) for number, size in enumerate(self._raw)]
        self._read = [
            size if values[number].exact else max(saved, min(stored.read.get(number, saved), size))
            for number, (saved, size) in enumerate(zip(self._saved, self._raw, strict=True))
        ]
        self._passing = [stored.passing.get(number, 0) for number in range(len(values))]
        self._forward = [min(stored.forward.get(number, 0), saved) for number, saved in enumerate(self._saved)]
        self._taken_over = {value.reuses: number for number, value in enumerate(values) if value.reuses >= 0}

    def of(self, kept: Collection[int]) -> tuple[int, float]:
        """Bytes of the peak, and the seconds of what is repeated."""
        graph, schedule = self._graph, Schedule.of(self._graph, kept)
        run = _Run(schedule, [value.saved for value in graph.values], len(graph.other))
        for number, op in enumerate(graph.ops):
            storing = (self._passing[value] for value in op.packs if value not in schedule.recomputed)
            run.passing[number] = max(storing, default=0)
        members: dict[int, list[int]] = {}
        for number, planned in enumerate(schedule.ops):
            if planned.segment >= 0:
                members.setdefault(planned.segment, []).append(number)
        for number, step in enumerate(graph.steps):
            event = len(graph.ops) + number
            left = 0  # by repetitions in this event
            for value in step.reads:
                segment = schedule.ops[graph.values[value].producer].segment
                if value in schedule.recomputed and segment in members:
                    most, more = self._repeat(run, members.pop(segment), event)
                    run.passing[event] = max(run.passing[event], left + most)
                    left += more
            restored = sum(self._raw[value] for value in step.reads if self._saved[value] < self._raw[value])
            run.passing[event] = max(run.passing[event], left + restored)
        for number, entry in enumerate(graph.values):
            until = entry.until
            if number in self._taken_over:
                until = min(max(until, 0), graph.values[self._taken_over[number]].producer - 1)
            end = -1 if number in schedule.recomputed else run.ends[number]
            if number in schedule.recomputed:
                run.add(entry.producer, run.ends[number], self._forward[number])
            size = self._read[number] if number in run.read else self._saved[number]
            if size == entry.nbytes:
                run.add(entry.producer, max(until, end), size)
            else:
                run.add(entry.producer, until, entry.nbytes)
                run.add(entry.producer, end, size)
        peak = max(map(sum, zip(accumulate(run.change[:-1]), run.passing, graph.other, strict=True)), default=0)
        repeated = (op.seconds for op, planned in zip(graph.ops, schedule.ops, strict=True) if planned.segment >= 0)
        return peak, sum(repeated)

    def _repeat(self, run: _Run, ops: list[int], event: int) -> tuple[int, int]:
        """The most bytes that a repetition takes at once, and those that it leaves for backward."""
        graph, again = self._graph, run.schedule.recomputed
        rests: dict[int, int] = {}  # the last operator of the repetition that has to do with a value
        for number in ops:
            for value in (*graph.ops[number].reads, *graph.ops[number].makes):
                rests[value] = number
        live, left, most = 0, 0, 0
        for number in ops:
            op, restored = graph.ops[number], 0
            for value in op.reads:
                if value not in again:
                    run.ends[value] = max(run.ends[value], event)
                    run.read.add(value)
                    restored += self._raw[value] if self._read[value] < self._raw[value] else 0
            for value in op.makes:
                reused = graph.values[value].reuses
                live += self._raw[value] - (self._raw[reused] if reused >= 0 else 0)
            most = max(most, live + restored)
            for value in {*(value for value in op.reads if value in again), *op.makes}:
                if rests[value] != number or self._taken_over.get(value, -1) in op.makes:
                    continue
                if value in again and graph.values[value].saved >= event:
                    most = max(most, live + self._passing[value])
                    stored = self._saved[value] - self._forward[value]
                    live += stored
                    left += stored
                    run.add(event + 1, graph.values[value].saved, stored)
                live -= self._raw[value]
        return most, left


@dataclass
class _Run:
    """One choice.

    Attributes:
        schedule: of the choice.
        ends: of values: the last event at which they are wanted, where they are kept.
        events: how many there are.
        read: values that repetitions read.
        change: by how many bytes what is alive grows at an event.
        passing: bytes that are there at an event alone.
    """

    schedule: Schedule
    ends: list[int]
    events: int
    read: set[int] = field(default_factory=set)
    change: list[int] = field(init=False)
    passing: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.change, self.passing = [0] * (self.events + 1), [0] * self.events

    def add(self, first: int, last: int, nbytes: int) -> None:
        """These bytes are there from one event to another."""
        if last >= first:
            self.change[first] += nbytes
            self.change[last + 1] -= nbytes
