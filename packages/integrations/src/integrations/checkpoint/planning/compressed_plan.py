"""``compressed_plan``: what to keep where what is kept, and what is made again, is stored in fewer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from actcore import CheckpointPlans, TrainingStep, checkpoint_plans
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.planning.choice import Choice, mask_of
from integrations.checkpoint.planning.compressed_peak import CompressedPeak, StoredBytes
from integrations.checkpoint.planning.plan import Plan
from integrations.checkpoint.planning.problem import training_step
from integrations.levels import Level

_MOST = 48
"""Choices of each search that are looked at: a simulation takes milliseconds."""


def compressed_plan(name: str, graph: Graph, stored: StoredBytes, capture_seconds: float = 0.0, level: Level | None = None) -> Plan:
    """The plan of the least peak, with its peaks as they are then.

    The search is asked twice: with the values' own bytes, and as if they had their stored ones wherever they are kept
    or made again, with the rest of their bytes there whatever is kept. It is right about what is kept in the second,
    and about what a repetition takes while it runs in the first; the simulation of ``CompressedPeak``, which is right
    about both, chooses among what they find.

    Args:
        name: of the model.
        graph: of the model.
        stored: sizes.
        capture_seconds: that the capture took.
    """
    started = perf_counter()
    step = training_step(graph)
    peak = CompressedPeak(graph, stored)
    chosen: dict[int, tuple[int, float]] = {}
    found = [checkpoint_plans(step), checkpoint_plans(_with_stored(step, graph, stored.saved))]
    for plans in found:
        for kept in _some(plans):
            values = [value for value, is_kept in enumerate(kept) if is_kept]
            mask = mask_of(values)
            if mask not in chosen:
                chosen[mask] = peak.of(values)
    front: list[Choice] = []
    for mask, (nbytes, seconds) in sorted(chosen.items(), key=lambda item: (item[1], item[0])):
        if not front or seconds < front[-1].seconds:
            front.append(Choice(mask, nbytes - graph.gradients, seconds, 0.0, rounded=graph.rounded))
    return Plan(
        model=name,
        graph=graph,
        choice=front[0],
        front=tuple(front),
        peak_bound=found[1].peak_bound - graph.gradients,  # of a step that takes less, whatever is kept
        exact=False,
        level=level,
        capture_seconds=capture_seconds,
        search_seconds=perf_counter() - started,
    )


def _with_stored(step: TrainingStep, graph: Graph, stored: Mapping[int, int]) -> TrainingStep:
    nbytes, other = list(step.nbytes), list(step.other)
    for value, size in stored.items():
        entry = graph.values[value]
        for event in range(entry.producer, entry.until + 1):
            other[event] += max(0, entry.nbytes - size)
        nbytes[value] = min(size, entry.nbytes)
    return replace(step, nbytes=nbytes, other=other)


def _some(plans: CheckpointPlans) -> list[tuple[bool, ...]]:
    """Choices of a front, evenly, and both ends; none with nested checkpoints."""
    front = [plan for plan in plans.front if plan.held is None]
    places = {round(place * (len(front) - 1) / (_MOST - 1)) for place in range(_MOST)} if len(front) > 1 else {0}
    return [front[place].kept for place in sorted(places)]
