"""``training_step``: a graph in the numbers that actcore's search works on. ``chosen_entries``: a choice in those
numbers. ``SimulatedStep``: what choices take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from actcore import StepUsage, TrainingStep, simulate
from integrations.capture.graphs.graph import Graph
from integrations.planner.choice import Choice
from integrations.planner.storage_candidates import Option, StorageCandidates


def training_step(graph: Graph, candidates: StorageCandidates | None = None) -> TrainingStep:
    """The graph's operators, values and steps; gradients are in its ``other``, those of the parameters included. Other
    forwards in flight are left out.

    Args:
        graph: of the model.
        candidates: the stores that its values may wait in; ``None``: they are kept as they are or recomputed.
    """
    seconds = [op.repeat_seconds for op in graph.ops]
    stores: dict[str, Sequence[Any]] = {}
    if candidates is not None:
        seconds = [one + candidates.repeating for one in seconds]
        stores = {
            "forms": _allowed(candidates),
            "weights": candidates.weights,
            "aside": candidates.aside,
            "stored_at": [_or_none(event) for event in candidates.stored_at],
            "formed": [any(option.store is None for option in row) for row in candidates.options],
        }
    return TrainingStep(
        nbytes=[value.nbytes for value in graph.values],
        reads=[op.reads for op in graph.ops],
        makes=[op.makes for op in graph.ops],
        seconds=seconds,
        backward=[step.reads for step in graph.steps],
        other=graph.other,
        repeatable=[op.repeatable for op in graph.ops],
        scratch=[op.scratch for op in graph.ops],
        reuses=[_or_none(value.reuses) for value in graph.values],
        until=[_or_none(value.until) for value in graph.values],
        **stores,
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

    kept: Sequence[bool]
    held: Sequence[bool] | None = None
    forms: Sequence[int] | None = None


def all_kept(graph: Graph) -> Entries:
    """Return the choice that recomputes and compresses nothing."""
    return Entries([True] * len(graph.values))


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


class SimulatedStep:
    """A graph's training step, and what choices take of it.

    Args:
        graph, candidates: as for ``training_step``.
    """

    def __init__(self, graph: Graph, candidates: StorageCandidates | None = None) -> None:
        self._graph, self._candidates = graph, candidates

    @cached_property
    def step(self) -> TrainingStep:
        """The step without other forwards in flight."""
        return training_step(self._graph, self._candidates)

    def usage(self, entries: Entries) -> StepUsage:
        """Return what a choice takes. The bytes include those that other forwards in flight hold."""
        usage = simulate(self.step, *entries)
        if self._graph.in_flight == 1:
            return usage
        others = (self._graph.in_flight - 1) * self.held(entries)
        return replace(usage, peak=usage.peak + others, nbytes=tuple(nbytes + others for nbytes in usage.nbytes))

    def peak(self, entries: Entries) -> int:
        """Return the activation peak of a choice in bytes, which leaves out the parameters' gradients."""
        return self.usage(entries).peak - self._graph.gradients

    def held(self, entries: Entries) -> int:
        """Return the bytes that a forward holds until its backward: the tensors that wait for backward, and those that
        the caller holds."""
        return simulate(self._paused, *entries).nbytes[len(self._graph.ops)]

    @cached_property
    def _paused(self) -> TrainingStep:
        """The step with an event between forward and backward in which nothing happens."""
        step, between = self.step, len(self._graph.ops)
        return replace(
            step,
            backward=((), *step.backward),
            other=(*step.other[:between], 0, *step.other[between:]),
            until=[event if event is None or event < between else event + 1 for event in step.until],
        )

    def at_level(self, kept: Sequence[bool]) -> Entries:
        """Return the choice that keeps these values, in the forms of a level. The form of a value depends on its
        readers."""
        graph, candidates = self._graph, self._candidates
        assert candidates is not None
        segments = simulate(self.step, kept).segments
        read = {value for segment in segments for number in segment for value in graph.ops[number].reads}
        forms = []
        for value, row in enumerate(candidates.options):
            fitting = [
                (option.held, form)
                for form, option in enumerate(row)
                if (option.serves or not kept[value] or value not in read)
                # A recomputed value is read at once, and is not moved to the host.
                and not (option.store is not None and option.store.host and not kept[value])
            ]
            forms.append(min(fitting, default=(0, -1))[1])
        return Entries(kept, forms=forms)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
