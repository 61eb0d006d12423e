"""``training_step``: a graph in the numbers that actcore's search works on. ``chosen_entries``: a choice in those
numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from actcore import TrainingStep
from integrations.capture.graphs.graph import Graph
from integrations.planner.choice import Choice
from integrations.planner.storage_candidates import Option, StorageCandidates


def training_step(graph: Graph, candidates: StorageCandidates | None = None) -> TrainingStep:
    """The graph's operators, values and steps; gradients are in its ``other``, those of the parameters included.

    Args:
        graph: of the model.
        candidates: the stores that its values may wait in; ``None``: they are kept as they are or recomputed.
    """
    step = TrainingStep(
        nbytes=[value.nbytes for value in graph.values],
        reads=[op.reads for op in graph.ops],
        makes=[op.makes for op in graph.ops],
        seconds=[op.repeat_seconds for op in graph.ops],
        backward=[step.reads for step in graph.steps],
        other=graph.other,
        repeatable=[op.repeatable for op in graph.ops],
        scratch=[op.scratch for op in graph.ops],
        reuses=[_or_none(value.reuses) for value in graph.values],
        until=[_or_none(value.until) for value in graph.values],
    )
    if candidates is None:
        return step
    return replace(
        step,
        seconds=[seconds + candidates.repeating for seconds in step.seconds],
        forms=_allowed(candidates),
        weights=candidates.weights,
        aside=candidates.aside,
        stored_at=[_or_none(event) for event in candidates.stored_at],
        formed=[any(option.store is None for option in row) for row in candidates.options],
    )


_EXCLUDED = 1e9
"""The noise of a store beyond its limit: no bound on the error allows it. The store keeps its place in its row, by
which a choice names it."""


def _allowed(candidates: StorageCandidates) -> Sequence[Sequence[Option]]:
    """Return the stores of each value, those beyond the value's limit with more noise than any bound allows."""
    if not candidates.limits:
        return candidates.options
    return [
        [replace(one, noise=_EXCLUDED) if one.noise > limit else one for one in row]
        for row, limit in zip(candidates.options, candidates.limits, strict=True)
    ]


class Entries(NamedTuple):
    """A choice as ``actcore.simulate`` takes it, with an entry for each value; see there."""

    kept: list[bool]
    held: list[bool] | None
    forms: list[int]


def chosen_entries(choice: Choice, candidates: StorageCandidates) -> Entries:
    """Return a choice as ``actcore.simulate`` takes it.

    Args:
        choice: a choice of a plan.
        candidates: the stores of the values of the choice's graph.
    """
    count = len(candidates.options)
    forms = [-1] * count
    for value, store in choice.stores:
        forms[value] = next(place for place, one in enumerate(candidates.options[value]) if one.store == store)
    kept = [bool(choice.mask >> value & 1) for value in range(count)]
    held = None if choice.held is None else [bool(choice.held >> value & 1) for value in range(count)]
    return Entries(kept, held, forms)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
