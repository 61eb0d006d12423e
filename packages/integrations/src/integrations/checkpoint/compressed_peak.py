"""The peak of a step that stores what it keeps, and what it has made again, in fewer bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate

from integrations.checkpoint.graph import Graph
from integrations.checkpoint.schedule import Schedule


class CompressedPeak:
    """Runs through forward and backward in numbers, as ``actcore.simulate`` does, for choices of what to keep.

    A value that is kept lies in memory as it is as long as the forward holds it, and from when it was made to its last
    reader in its stored form; where somebody reads that, it is there as it is once more meanwhile. What a repetition
    makes for backward is stored when the repetition needs it no more.

    Args:
        graph: of the model.
        stored: bytes of values in their stored form; others are kept as they are.
        read: the same of values that a repetition reads, where that takes more.
    """

    def __init__(self, graph: Graph, stored: Mapping[int, int], read: Mapping[int, int]) -> None:
        self._graph = graph
        values = graph.values
        self._raw = [value.nbytes for value in values]
        self._stored = [min(stored.get(number, value.nbytes), value.nbytes) for number, value in enumerate(values)]
        self._read = [
            max(size, min(read.get(number, size), value.nbytes))
            for number, (size, value) in enumerate(zip(self._stored, values, strict=True))
        ]
        self._taken_over = {value.reuses: number for number, value in enumerate(values) if value.reuses >= 0}

    def of(self, kept: Collection[int]) -> tuple[int, float]:
        """Bytes of the peak, and the seconds of what is repeated."""
        graph, schedule = self._graph, Schedule.of(self._graph, kept)
        count = len(graph.other)
        members: dict[int, list[int]] = {}
        for number, op in enumerate(schedule.ops):
            if op.segment >= 0:
                members.setdefault(op.segment, []).append(number)
        ends = [value.saved for value in graph.values]  # of what is kept, with its readers in repetitions
        read: set[int] = set()  # by those
        change, passing = [0] * (count + 1), [0] * count  # what comes and goes at events; what is there in one alone
        repeated: set[int] = set()
        for number, step in enumerate(graph.steps):
            event = len(graph.ops) + number
            for value in step.reads:
                segment = schedule.ops[graph.values[value].producer].segment
                if value in schedule.recomputed and segment not in repeated:
                    repeated.add(segment)
                    passing[event] = max(
                        passing[event], self._repeat(schedule, members[segment], event, ends, read, change)
                    )
            restored = sum(self._raw[value] for value in step.reads if self._stored[value] < self._raw[value])
            passing[event] = max(passing[event], restored)
        for number, entry in enumerate(graph.values):
            until = entry.until
            if number in self._taken_over:
                until = min(max(until, 0), graph.values[self._taken_over[number]].producer - 1)
            end = -1 if number in schedule.recomputed else ends[number]
            size = self._read[number] if number in read else self._stored[number]
            if size == entry.nbytes:
                _alive(change, entry.producer, max(until, end), entry.nbytes)
            else:
                _alive(change, entry.producer, until, entry.nbytes)
                _alive(change, entry.producer, end, size)
        alive = accumulate(change[:count])
        peak = max((sum(parts) for parts in zip(alive, passing, graph.other, strict=True)), default=0)
        return peak, sum(
            op.seconds for op, planned in zip(graph.ops, schedule.ops, strict=True) if planned.segment >= 0
        )

    def _repeat(
        self, schedule: Schedule, ops: list[int], event: int, ends: list[int], read: set[int], change: list[int]
    ) -> int:
        """The most bytes that a repetition takes at once. Notes what it leaves for backward, and what it reads."""
        graph = self._graph
        rests: dict[int, int] = {}  # the last operator of the repetition that has to do with a value
        for number in ops:
            for value in (*graph.ops[number].reads, *graph.ops[number].makes):
                rests[value] = number
        live, most = 0, 0
        for number in ops:
            op, restored = graph.ops[number], 0
            for value in op.reads:
                if value not in schedule.recomputed:
                    ends[value] = max(ends[value], event)
                    read.add(value)
                    restored += self._raw[value] if self._read[value] < self._raw[value] else 0
            for value in op.makes:
                live += self._raw[value] - (self._raw[graph.values[value].reuses] if _reuses(graph, value) else 0)
            most = max(most, live + restored)
            for value in {*op.reads, *op.makes}:
                if rests[value] != number or (value in op.reads and value not in schedule.recomputed):
                    continue
                if value in self._taken_over and self._taken_over[value] in op.makes:
                    continue
                live -= self._raw[value]
                if value in schedule.recomputed and graph.values[value].saved >= event:
                    live += self._stored[value]
                    _alive(change, event + 1, graph.values[value].saved, self._stored[value])
        return most


def _reuses(graph: Graph, value: int) -> bool:
    return graph.values[value].reuses >= 0


def _alive(change: list[int], first: int, last: int, nbytes: int) -> None:
    """These bytes are there from one event to another."""
    if last >= first:
        change[first] += nbytes
        change[last + 1] -= nbytes
