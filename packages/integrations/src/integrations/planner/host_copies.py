"""``host_copies``: how far the copies to and from the host may run beside the computation, within a plan's peak.

A copy beside the computation holds the device's memory longer: a value that leaves until it has arrived, and one that
comes back from the start of its copy. A plan's peak counts neither, so a copy may run beside the computation only where
the step has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    stored_at = {value: _stored_at(graph, candidates, usage, value) for value in away}
    order = sorted(away, key=lambda value: stored_at[value])
    sizes = {value: _payload_bytes(graph, choice, candidates, value) for value in order}
    restores = {value: _restores(graph, schedule, usage, value) for value in order}
    leaving = _leaving(order, sizes, stored_at, restores, usage)
    ahead = _ahead(order, sizes, restores, usage)
    return {value: HostCopies(leaving[value], value in ahead) for value in order}


def _stored_at(graph: Graph, candidates: StorageCandidates, usage: StepUsage, value: int) -> int:
    """Return the operator after which a value is stored: when autograd saves it or, if that never does, when an
    operator that is repeated first reads it."""
    if candidates.stored_at[value] >= 0:
        return candidates.stored_at[value]
    repeated = (number for segment in (*usage.segments, *usage.inner) for number in segment)
    readers = (number for number in repeated if value in graph.ops[number].reads)
    return min(readers, default=graph.values[value].producer)


def _payload_bytes(graph: Graph, choice: Choice, candidates: StorageCandidates, value: int) -> int:
    """Return the bytes of the device's memory that a copy reads or writes."""
    store = dict(choice.stores)[value]
    whole = graph.values[value].nbytes
    crossing = candidates.option(value, store).restored - whole
    return whole + crossing if store.exact or not crossing else crossing


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
    order: Sequence[int],
    sizes: Mapping[int, int],
    stored_at: Mapping[int, int],
    restores: Mapping[int, Sequence[int] | None],
    usage: StepUsage,
) -> Mapping[int, int]:
    """Return for each value how many may be on their way out once it is stored, until the next one is or backward
    restores one. Those that one operator stores may come in any order."""
    largest: dict[int, int] = {}  # by operator
    for value in order:
        largest[stored_at[value]] = max(largest.get(stored_at[value], 0), sizes[value])
    bounds = [largest[stored_at[value]] for value in order]
    first = min((events[0] for events in restores.values() if events), default=len(usage.nbytes) - 1)
    ends = [*(stored_at[value] for value in order[1:]), first]
    found = {}
    for place, (value, end) in enumerate(zip(order, ends, strict=True)):
        room = usage.peak - max(usage.nbytes[stored_at[value] : end + 1])
        counts = range(BESIDE.leaving, -1, -1)
        found[value] = next(count for count in counts if sum(bounds[max(0, place + 1 - count) : place + 1]) <= room)
    return found


def _ahead(
    order: Sequence[int],
    sizes: Mapping[int, int],
    restores: Mapping[int, Sequence[int] | None],
    usage: StepUsage,
) -> set[int]:
    """Return the values whose restoring may start the copy back of the one that was stored before and is still needed:
    the device then holds that one until it is restored."""
    found: set[int] = set()
    used = list(usage.nbytes)
    for place in range(len(order) - 1, 0, -1):
        periods = [
            period
            for at in restores[order[place]] or ()
            if (period := _awaited(order[:place], restores, at)) is not None
        ]
        fits = all(max(used[start : end + 1]) + sizes[value] <= usage.peak for value, start, end in periods)
        if not fits or restores[order[place]] is None or None in map(restores.get, order[:place]):
            continue
        found.add(order[place])
        for value, start, end in periods:
            used[start : end + 1] = [nbytes + sizes[value] for nbytes in used[start : end + 1]]
    return found


def _awaited(
    earlier: Sequence[int], restores: Mapping[int, Sequence[int] | None], at: int
) -> tuple[int, int, int] | None:
    """Return the last of the values that backward restores at an event or later, that event, and the one at which it
    does so."""
    for value in reversed(earlier):
        later = [event for event in restores[value] or () if event >= at]
        if later:
            return value, at, later[0]
    return None
