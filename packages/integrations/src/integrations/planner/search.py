"""``solved``: from the captures of a model to its plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from actcore import CheckpointPlan, CheckpointPlans, checkpoint_plans, most_exact_plan
from integrations.capture.graphs.graph import Graph
from integrations.planner.bounds import Bounds
from integrations.planner.choice import Choice, make_mask
from integrations.planner.feng_huang_objective import paper_segments
from integrations.planner.problem import Entries, SimulatedStep, chosen_entries, training_step
from integrations.planner.solution import Found, Objective, Solution
from integrations.planner.storage_candidates import StorageCandidates
from integrations.policies.levels import Level
from integrations.policies.stores import Store

_MOST_AT_LEVEL = 48
"""How many plans of each search are simulated with the stores of a level."""


class Captures(NamedTuple):
    """A model's training step as it is planned for; each field is as in ``Plan``."""

    graph: Graph
    candidates: StorageCandidates | None = None
    rounded: Graph | None = None
    rounded_candidates: StorageCandidates | None = None
    level: Level | None = None


def solved(
    kind: type[Found],
    name: str,
    captures: Captures,
    bounds: Bounds,
    objective: Objective = "peak",
    capture_seconds: float = 0.0,
) -> Found:
    """The plan of the least peak, and the others that none beats in both peak and seconds.

    The forward as it is and the one in which what backward reads may be rounded are different graphs, whose fronts are
    merged: so nothing is worse than without rounding.

    Args:
        kind: the class of the plan.
        name: the name of the model's class.
        captures: what is planned for.
        bounds: only the bound on the error counts: 0 leaves the forward as it is, and the stores that round nothing.
        objective: what the plan's own choice minimises.
        capture_seconds: the time that the captures took.
    """
    started = perf_counter()
    graph, candidates, rounded, rounded_candidates, level = captures
    found = _fronts(graph, candidates) if level is None or candidates is None else [_front_at_level(graph, candidates)]
    if bounds.error and rounded is not None:
        found += _fronts(rounded, rounded_candidates, bounds.error**2, _more(rounded, graph))
    merged = _merged(choice for one in found for choice in one.front)
    front = merged
    if level is None:  # a bound that holds for one graph need not hold for the other
        front = tuple(replace(one, seconds_bound=min(each.bound_at(one.peak) for each in found)) for one in merged)
    choice = front[0]
    if objective == "paper":
        kept = paper_segments(graph).kept
        usage = SimulatedStep(graph).usage(Entries([value in kept for value in range(len(graph.values))]))
        choice = Choice(make_mask(kept), usage.peak - graph.gradients, usage.seconds, 0.0)
    return kind(
        model=name,
        graph=graph,
        choice=choice,
        front=front,
        peak_bound=min(one.peak_bound for one in found),
        exact=all(one.exact for one in found),
        objective=objective,
        capture_seconds=capture_seconds,
        search_seconds=perf_counter() - started,
        candidates=candidates,
        rounded=rounded,
        rounded_candidates=rounded_candidates,
        level=level,
        bounds=bounds,
    )


def solved_again(
    plan: Found, candidates: StorageCandidates | None, rounded_candidates: StorageCandidates | None
) -> Found:
    """The front of a plan's model with other candidates, from the same captures. The plan has the least peak."""
    captures = Captures(plan.graph, candidates, plan.rounded, rounded_candidates, plan.level)
    bounds = replace(plan.bounds, memory=None, time=None)
    made = solved(type(plan), plan.model, captures, bounds, plan.objective, plan.capture_seconds)
    seconds = plan.search_seconds + made.search_seconds
    return made.with_context(plan, search_seconds=seconds)


def solved_for_any_path(plan: Found) -> Found:
    """Return the plan of the least peak for a model whose forward takes different paths, from the same captures."""
    bounds = replace(plan.bounds.for_any_path, memory=None, time=None)
    candidates, rounded_candidates = (
        None if one is None else one.allowing(bounds.allows) for one in (plan.candidates, plan.rounded_candidates)
    )
    captures = Captures(plan.graph, candidates, plan.rounded, rounded_candidates, plan.level)
    made = solved(type(plan), plan.model, captures, bounds, plan.objective, plan.capture_seconds)
    unmeasured = "its forward takes another path in some steps"
    return made.with_context(plan, unmeasured=unmeasured)


def most_exact(plan: Solution, peak: int, seconds: float) -> Choice | None:
    """The choice of the least error, among those that round, within a peak and so many seconds; ``None`` if none is
    found."""
    graph = plan.rounded
    if graph is None or plan.rounded_candidates is None:
        return None
    more, candidates = _more(graph, plan.graph), plan.rounded_candidates
    found: list[Choice] = []
    for one, beside in _followed(graph, candidates, more):
        with suppress(ValueError):  # there is none
            if seconds >= beside:
                best = most_exact_plan(training_step(one, candidates), peak + graph.gradients, seconds - beside)
                found += _with_others(graph, candidates, [_choice(graph, candidates, best, beside)])
    return min((one for one in found if one.peak <= peak), key=lambda choice: choice.variance, default=None)


def _more(rounded: Graph, graph: Graph) -> float:
    """How many seconds longer a step takes in which backward recomputes attention."""
    return max(0.0, rounded.seconds - graph.seconds)


class _Front(NamedTuple):
    """What a search found for one graph."""

    front: tuple[Choice, ...]
    peak_bound: int
    exact: bool

    def bound_at(self, peak: int) -> float:
        """A lower bound on the seconds of all choices with such a peak; infinite if there is none. More memory never
        takes more time, so the bound of the next known peak holds, or the one of the last."""
        if peak < self.peak_bound:
            return math.inf
        return next(
            (choice.seconds_bound for choice in self.front if choice.peak >= peak), self.front[-1].seconds_bound
        )


def _fronts(
    graph: Graph, candidates: StorageCandidates | None, variance: float = 0.0, more: float = 0.0
) -> list[_Front]:
    """The choices of a graph, and those that recompute nothing, whose forwards need no tape.

    Args:
        graph: the graph to plan for.
        candidates: the stores of its values.
        variance: the most that a choice may have.
        more: how many seconds its step takes longer than that of the plain forward.
    """
    found = []
    for one, beside in _followed(graph, candidates, more):
        plans = checkpoint_plans(training_step(one, candidates), variance=variance)
        front = tuple(_choice(one, candidates, plan, beside) for plan in plans.front)
        single = _Front(front, plans.peak_bound - one.gradients, plans.exact)
        found.append(single if one.in_flight == 1 else _in_flight(one, candidates, variance, beside, single))
    return found


def _in_flight(
    graph: Graph, candidates: StorageCandidates | None, variance: float, beside: float, single: _Front
) -> _Front:
    """The choices of a graph with several forwards in flight. The search knows one of them, so that its choices are
    joined with those that hold the least until backward, and no other choices are tried.

    Args:
        graph, candidates, variance: as for ``_fronts``.
        beside: seconds to add.
        single: the choices with one forward in flight.
    """
    holding = checkpoint_plans(training_step(graph.with_peak_between, candidates), variance=variance)
    choices = [*single.front, *(_choice(graph, candidates, plan, beside) for plan in holding.front)]
    found = _with_others(graph, candidates, choices)
    # No choice takes less with several forwards than with one, and more memory never takes more time.
    bounded = (replace(one, seconds_bound=min(one.seconds, single.bound_at(one.peak))) for one in found)
    return _Front(_merged(bounded), single.peak_bound, False)


def _with_others(graph: Graph, candidates: StorageCandidates | None, choices: Sequence[Choice]) -> Sequence[Choice]:
    """Choices that were found for one forward, with the peaks that they have beside the others in flight."""
    if graph.in_flight == 1:
        return choices
    step = SimulatedStep(graph, candidates)
    stores = StorageCandidates.none(len(graph.values)) if candidates is None else candidates
    return [replace(choice, peak=step.peak(chosen_entries(choice, stores))) for choice in choices]


def _followed(graph: Graph, candidates: StorageCandidates | None, more: float) -> list[tuple[Graph, float]]:
    """The graph and, if a tape takes time, the graph without recomputation, each with the seconds to add. The tape's
    seconds are added to all choices of the first graph, even those that recompute nothing; the second graph finds those
    without them."""
    if candidates is None or not candidates.following:
        return [(graph, more)]
    return [(graph, more + candidates.following), (graph.keeping_all, more)]


def _choice(graph: Graph, candidates: StorageCandidates | None, plan: CheckpointPlan, more: float) -> Choice:
    chosen: dict[int, Store] = {}
    if candidates is not None and plan.forms is not None:
        named = ((value, candidates.options[value][form].store) for value, form in enumerate(plan.forms) if form >= 0)
        chosen = {value: store for value, store in named if store is not None}
    return Choice(
        _mask(plan.kept),
        plan.peak - graph.gradients,
        plan.seconds + more,
        plan.seconds_bound + more,
        None if plan.held is None else _mask(plan.held),
        tuple(chosen.items()),
        plan.variance,
        graph.rounded,
    )


def _front_at_level(graph: Graph, candidates: StorageCandidates) -> _Front:
    """The choices of a graph whose values wait as a level stores them, whether they are kept or recomputed.

    The search may leave a value as it is, and a level may not. So what it finds, with and without stores, is simulated
    once more with the level's. Nested checkpoints are left out: what an inner segment makes is never stored.
    """
    step = SimulatedStep(graph, candidates)
    found = [checkpoint_plans(training_step(graph)), checkpoint_plans(step.step)]
    if graph.in_flight > 1:
        found.append(checkpoint_plans(training_step(graph.with_peak_between, candidates)))
    choices: dict[int, Choice] = {}
    for plans in found:
        for plan in _some(plans):
            mask = _mask(plan.kept)
            if mask not in choices:
                usage = step.usage(step.at_level(plan.kept))
                stored = replace(plan, peak=usage.peak, seconds=usage.seconds, seconds_bound=0.0, forms=None)
                choices[mask] = _choice(graph, candidates, stored, 0.0)
    return _Front(_merged(choices.values()), found[1].peak_bound - graph.gradients, False)


def _some(plans: CheckpointPlans) -> list[CheckpointPlan]:
    """Plans spread evenly over a front, with both ends."""
    front = [plan for plan in plans.front if plan.held is None]
    places = {round(place * (len(front) - 1) / (_MOST_AT_LEVEL - 1)) for place in range(_MOST_AT_LEVEL)}
    return [front[place] for place in sorted(places)]


def _merged(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices that no other beats in both peak and seconds."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.peak, one.seconds, one.variance)):
        if not front or choice.seconds < front[-1].seconds:
            front.append(choice)
    return tuple(front)


def _mask(entries: tuple[bool, ...]) -> int:
    return make_mask(value for value, is_set in enumerate(entries) if is_set)
