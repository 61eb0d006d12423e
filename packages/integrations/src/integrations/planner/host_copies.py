"""``host_copies``: how far the copies to and from the host may run beside the computation, within a plan's peak.

A copy beside the computation holds the device's memory longer: a value that leaves until it has arrived, and one that
comes back from the start of its copy. A plan's peak counts neither, so a copy may run beside the computation only where
the step has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from actcore import StepUsage, simulate
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.planner.choice import Choice
from integrations.planner.problem import chosen_entries, training_step
from integrations.planner.storage_candidates import StorageCandidates
from integrations.policies.stores import BESIDE, HostCopies


def host_copies(
    graph: Graph, choice: Choice, candidates: StorageCandidates, schedule: Schedule
) -> Mapping[int, HostCopies]:
    """Return for each value that waits on the host how far its copies may run beside the computation.

    Args:
        graph, candidates: the choice's graph, and the stores of its values.
        choice: the choice.
        schedule: what it means for each operator.
    """
    away = [value for value, store in choice.stores if store.host and value not in schedule.recomputed]
    if not away:
        return {}
    usage = simulate(training_step(graph, candidates), *chosen_entries(choice, candidates))
    sizes = {value: _payload_bytes(graph, choice, candidates, value) for value in away}
    stores = {value: _stores(graph, usage, value) for value in away}
    restores = {value: _restores(graph, schedule, usage, value) for value in away}
    leaving = _leaving(sizes, stores, restores, usage)
    ahead = _ahead(sizes, stores, restores, usage)
    return {value: HostCopies(leaving[value], value in ahead) for value in away}


def _payload_bytes(graph: Graph, choice: Choice, candidates: StorageCandidates, value: int) -> int:
    """Return the bytes of the device's memory that a copy reads or writes."""
    store = dict(choice.stores)[value]
    whole = graph.values[value].nbytes
    crossing = candidates.option(value, store).restored - whole
    return whole + crossing if store.exact or not crossing else crossing


def _stores(graph: Graph, usage: StepUsage, value: int) -> Sequence[int]:
    """Return the operators after which a value may be stored, in order: those at which autograd saves it, since one may
    ask for its signs and a later one for its elements, and the first that is repeated and reads it. After the first of
    them, something is stored."""
    found = {number for number, op in enumerate(graph.ops) if value in op.packs}
    repeated = (number for segment in (*usage.segments, *usage.inner) for number in segment)
    readers = [number for number in repeated if value in graph.ops[number].reads]
    return sorted(found | {min(readers)} if readers else found) or [graph.values[value].producer]


def _restores(graph: Graph, schedule: Schedule, usage: StepUsage, value: int) -> Sequence[int] | None:
    """Return the events at which a value is restored, in order; ``None`` if they are not known."""
    found = {number for number, step in enumerate(graph.steps, len(graph.ops)) if value in step.reads}
    for segment in (*usage.segments, *usage.inner):
        if any(value in graph.ops[number].reads for number in segment):
            at = first_read(graph, segment, schedule.recomputed)
            if at is None:
                return None
            found.add(at)
    return sorted(found)


def first_read(graph: Graph, segment: Sequence[int], recomputed: frozenset[int]) -> int | None:
    """Return the event at which backward first reads what a segment makes; ``None`` if it reads none of it."""
    makes = {value for number in segment for value in graph.ops[number].makes} & recomputed
    events = (number for number, step in enumerate(graph.steps, len(graph.ops)) if makes.intersection(step.reads))
    return next(events, None)


def _leaving(
    sizes: Mapping[int, int],
    stores: Mapping[int, Sequence[int]],
    restores: Mapping[int, Sequence[int] | None],
    usage: StepUsage,
) -> Mapping[int, int]:
    """Return for each value how many may be on their way out once it is stored: as many as there is room for, whenever
    that is, until another value is stored for certain or backward restores one. Values that one operator stores may
    come in any order."""
    firsts = sorted({events[0] for events in stores.values()})
    backward = min((events[0] for events in restores.values() if events), default=len(usage.nbytes) - 1)

    def fitting(start: int) -> int:
        end = next((first for first in firsts if first > start), backward)
        room = usage.peak - max(usage.nbytes[start : end + 1])
        largest = max(sizes[value] for value, events in stores.items() if events[0] <= start)
        return min(BESIDE.leaving, room // max(largest, 1))

    return {value: min(map(fitting, events)) for value, events in stores.items()}


def _ahead(
    sizes: Mapping[int, int],
    stores: Mapping[int, Sequence[int]],
    restores: Mapping[int, Sequence[int] | None],
    usage: StepUsage,
) -> set[int]:
    """Return the values whose restoring may start the copy back of the one that was stored before: the device then
    holds that one until it is restored next, which may be at a later event even if it is restored at this one, too. It
    has to be certain which one that is, and that backward needs it later."""
    order = sorted(stores, key=lambda value: tuple(stores[value]))
    found: set[int] = set()
    used = list(usage.nbytes)
    for before, value in reversed([*pairwise(order)]):
        between = range(stores[before][0], stores[value][-1] + 1)
        others = any(event in between for other in order if other not in (before, value) for event in stores[other])
        events, awaited = restores[value], restores[before]
        if others or stores[before][0] == stores[value][0] or not events or not awaited or events[-1] >= awaited[-1]:
            continue
        periods = [slice(at, next(event for event in awaited if event > at) + 1) for at in events]
        if all(max(used[period]) + sizes[before] <= usage.peak for period in periods):
            found.add(value)
            for period in periods:
                used[period] = [nbytes + sizes[before] for nbytes in used[period]]
    return found
