"""``JointSearch``: what to keep, to round and to recompute of a joint graph.

How the rounding of a value changes the gradient was measured in eager code. The operators of the joint graph know which
of the eager step's values they make (``tagging``), and so the weights of these values hold for those of the joint
graph. A value that backward reads, and that the eager step does not have, is never computed from rounded values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch.fx import GraphModule, Node

from actcore import CheckpointPlan, TrainingStep, checkpoint_plans, simulate
from integrations.capture.costs.calibrating import calibrated
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.planner.plan import Plan
from integrations.planner.problem import training_step
from integrations.planner.storage_candidates import Option, StorageCandidates
from integrations.policies.aten_nodes import name_of
from integrations.policies.operators import OPERATORS, Effect
from integrations.runtime.compiled.joint_plans import Share
from integrations.runtime.compiled.joint_step import JointStep

VALUE_KEY = "actcore_value"
"""A key of ``node.meta`` in a graph that torch compiles: the ``EagerValue`` that the node makes."""

_COPIES = frozenset(one.name for entry in OPERATORS if entry.effect is Effect.SAME for one in entry.aten)
_STATISTICS = 8
"""How many times larger what is normalized is than its statistics, at least."""

_EXCLUDED = 1e9
"""The weight of a value that no rounding may reach."""


class EagerValue(NamedTuple):
    """A value of the eager step.

    Attributes:
        number: its number in the plan's graph with rounding.
        same_path: whether the compiled forward is certainly the planned one. If not, the value may take 8 bits or more.
        exact: whether something is decided by it, or its errors would be amplified.
        inner: whether the node makes something within the operator that makes the value, such as statistics.
    """

    number: int
    same_path: bool
    exact: bool
    inner: bool = False


class JointChoice(NamedTuple):
    """A schedule of a joint graph.

    Attributes:
        step: the joint graph's step.
        schedule: what is kept, in which stores, and recomputed.
        peak: the activation peak in bytes.
        held: bytes that are alive between forward and backward.
        seconds: of what is repeated, stored and restored.
        variance: the predicted square of the gradient's relative error.
    """

    step: JointStep
    schedule: Schedule
    peak: int
    held: int
    seconds: float
    variance: float


@dataclass
class _Front:
    """The best choices of a graph, with the graph and the candidates for which they were found."""

    graph: Graph
    candidates: StorageCandidates | None
    step: TrainingStep
    plans: list[CheckpointPlan]


class JointSearch:
    """Searches the schedule of a joint graph, again and again with less memory until what torch makes of it fits.

    Args:
        plan: the plan of the eager step, for the state of the gradients, and the bound on their error.
        forward_outputs: how many of the graph's results are those of the forward.
        rounds: whether anything may be rounded: not where no hooks store what is saved.

    Attributes:
        barred: names of nodes whose values are not to be rounded.
    """

    def __init__(self, plan: Plan, forward_outputs: int, rounds: bool = True) -> None:
        self._plan, self._forward_outputs = plan, forward_outputs
        self._rounds = rounds and can_round(plan)
        self.barred: set[str] = set()
        self._fronts: list[_Front] = []
        self._found: list[JointChoice] = []

    def search(self, gm: GraphModule, most: int, runs: float = 1.0) -> tuple[JointChoice, bool]:
        """The fastest schedule within so many bytes, or else the one that takes the least; and whether that is the
        least.

        Args:
            gm: the joint graph.
            most: the bytes.
            runs: as for ``count_together``.
        """
        found = self._found = [one for step in self._steps(gm) for one in self._choices(step, runs > 1)]
        taken = {id(one): count_together(one.peak, one.held, runs) for one in found}
        least = min(found, key=lambda one: (taken[id(one)], one.seconds))
        fitting = [one for one in found if taken[id(one)] <= most]
        best = min(fitting, key=lambda one: (one.seconds, taken[id(one)]), default=least)
        return best, best is least

    def find_shares(self, runs: float) -> Iterator[Share]:
        """What the last search would have chosen with other budgets, the least first.

        Args:
            runs: as for ``count_together``.
        """
        fastest = math.inf
        for taken, seconds, one in sorted(
            ((count_together(one.peak, one.held, runs), one.seconds, one) for one in self._found),
            key=operator.itemgetter(0, 1),
        ):
            if seconds < fastest:
                fastest = seconds
                yield Share(taken, one.peak, one.held)

    def count_plain(self, gm: GraphModule) -> tuple[int, int]:
        """Counts a joint graph that keeps everything: its activation peak, and the bytes that are alive between forward
        and backward."""
        graph = _in_state(JointStep(gm, self._forward_outputs, calibrated).graph, self._plan)
        peak = simulate(training_step(graph), [True] * len(graph.values)).peak - graph.gradients
        return peak, _count_held(Schedule.of(graph, range(len(graph.values))), {})

    def _steps(self, gm: GraphModule) -> Iterator[JointStep]:
        yield JointStep(gm, self._forward_outputs, calibrated)
        if self._rounds and any(VALUE_KEY in node.meta for node in gm.graph.nodes):
            yield JointStep(gm, self._forward_outputs, calibrated, rounded=True, is_exact=_is_exact)

    def _choices(self, step: JointStep, holds_less: bool) -> Iterator[JointChoice]:
        """The choices of a step that none beats in peak and seconds.

        Args:
            step: of the joint graph.
            holds_less: whether to add those that none beats in seconds and in what is held between the graphs.
        """
        graph = _in_state(step.graph, self._plan)
        candidates = make_candidates(step, self._plan, self.barred) if graph.rounded else None
        plans = self._front(graph, candidates).plans
        if holds_less:
            front = self._front(graph.with_peak_between, candidates)
            usages = (simulate(training_step(graph, candidates), one.kept, forms=one.forms) for one in front.plans)
            plans = [*plans, *(replace(one, peak=use.peak) for one, use in zip(front.plans, usages, strict=True))]
        more = step.attention_seconds if graph.rounded else 0.0
        for one in plans:
            kept = [value for value, is_kept in enumerate(one.kept) if is_kept]
            forms = dict(_chosen_forms(one, candidates))
            stores = {value: form.store for value, form in forms.items() if form.store is not None}
            schedule = Schedule.of(graph, kept, stores=stores)
            held = _count_held(schedule, {value: form.held for value, form in forms.items()})
            yield JointChoice(step, schedule, one.peak - graph.gradients, held, one.seconds + more, one.variance)

    def _front(self, graph: Graph, candidates: StorageCandidates | None) -> _Front:
        """The plans of a graph; those that were found before where it is the same."""
        for front in self._fronts:
            if front.graph == graph and front.candidates == candidates:
                return front
        step = training_step(graph, candidates)
        found = checkpoint_plans(step, variance=0.0 if candidates is None else _allowed_variance(self._plan)).front
        flat = [_where_kept(step, one) for one in found if one.held is None]  # torch repeats nothing twice
        self._fronts.append(_Front(graph, candidates, step, flat))
        return self._fronts[-1]


def _is_exact(node: Node) -> bool:
    value: EagerValue | None = node.meta.get(VALUE_KEY)
    return value is not None and value.exact and not value.inner


def can_round(plan: Plan) -> bool:
    """Whether a plan may round values of a compiled graph: it allows an error, and has the measured weights."""
    return not plan.bounds.exact and plan.rounded is not None and plan.rounded_candidates is not None


def _in_state(graph: Graph, plan: Plan) -> Graph:
    """The step of a joint graph in the state of the gradients that a plan is for, and without recomputation if the plan
    was asked to do without."""
    if not plan.bounds.recomputes:
        graph = graph.keeping_all
    if plan.graph.accumulates:
        return replace(graph, gradients=0, accumulates=True)
    return graph.clearing if plan.graph.clears else graph


def _allowed_variance(plan: Plan) -> float:
    """The most that a choice may have: that of the bound, less if the plan's error was measured above what was
    predicted."""
    bound, predicted = plan.error, plan.choice.error
    if plan.measured is not None and 0 < predicted < plan.measured:
        bound *= predicted / plan.measured
    return bound**2


def _where_kept(step: TrainingStep, plan: CheckpointPlan) -> CheckpointPlan:
    """The plan with what is recomputed as it is: a compiled graph stores nothing in backward."""
    if plan.forms is None or all(is_kept or form < 0 for is_kept, form in zip(plan.kept, plan.forms, strict=True)):
        return plan
    forms = tuple(form if is_kept else -1 for is_kept, form in zip(plan.kept, plan.forms, strict=True))
    usage = simulate(step, plan.kept, forms=forms)
    return replace(plan, forms=forms, peak=usage.peak, seconds=usage.seconds, variance=usage.variance)


def _chosen_forms(plan: CheckpointPlan, candidates: StorageCandidates | None) -> Iterator[tuple[int, Option]]:
    if candidates is not None and plan.forms is not None:
        for value, form in enumerate(plan.forms):
            if form >= 0:
                yield value, candidates.options[value][form]


def _count_held(schedule: Schedule, forms: Mapping[int, int]) -> int:
    """The bytes that are alive between forward and backward: what is kept, and the results.

    Args:
        schedule: a joint graph's.
        forms: by value: the bytes of its stored form.
    """
    graph, again = schedule.graph, set[int]()
    for op, planned in zip(graph.ops, schedule.ops, strict=True):
        if planned.segment >= 0:
            again.update(op.reads)
    return sum(
        forms.get(number, value.nbytes)
        for number, value in enumerate(graph.values)
        if number in graph.outputs or (number not in schedule.recomputed and (value.saved >= 0 or number in again))
    )


def count_together(peak: int, held: int, runs: float) -> int:
    """Estimates the bytes of a step with several graphs from one of them: while its backward runs, the others' saved
    tensors are alive, too.

    Args:
        peak, held: bytes of the graph, as in ``JointPlan``.
        runs: the bytes that all graphs of all forwards in flight hold between forward and backward, divided by
            ``held``; 1 for a single graph.
    """
    return int(runs * held) + peak - held


# ---- the stores of values ----


def make_candidates(step: JointStep, plan: Plan, barred: Set[str]) -> StorageCandidates:
    """The stores in which the values of a joint graph may wait, and what their rounding does to the gradient.

    Args:
        step: the joint graph's step.
        plan: the plan of the eager step.
        barred: names of nodes whose values are not to be rounded.
    """
    eager, known = plan.rounded, plan.rounded_candidates
    assert eager is not None
    assert known is not None
    weights, options = [], []
    for number, nodes in enumerate(step.nodes):
        value = step.graph.values[number]
        noted = [node.meta[VALUE_KEY] for node in nodes if VALUE_KEY in node.meta]
        same = [one for one in noted if not one.inner]
        made = {one.number for one in same or _find_copied(nodes[0])}
        weight = sum(known.weights[one] for one in made)
        # Statistics go with what is normalized by them: eager code has measured both together.
        small = any(_STATISTICS * value.nbytes <= eager.values[one.number].nbytes for one in noted)
        if value.saved >= 0 and not small and not any(eager.values[one].saved >= 0 for one in made):
            weight = _EXCLUDED
        weights.append(weight)
        free = len(same) > 0 and len(made) == 1 and value.saved >= 0 and number not in step.graph.outputs
        free = free and barred.isdisjoint(node.name for node in nodes)
        options.append(_options(same[0], value.nbytes, eager, known) if free else ())
    for node, values in step.read_through.items():
        if VALUE_KEY in node.meta and not node.meta[VALUE_KEY].inner:
            for number in values:
                weights[number] += known.weights[node.meta[VALUE_KEY].number]
    stored_at = tuple(max(value.until, value.producer) for value in step.graph.values)
    at = tuple(event if event < len(step.graph.ops) else -1 for event in stored_at)
    return StorageCandidates(tuple(options), tuple(weights), (0,) * len(weights), at)


def _find_copied(node: Node) -> list[EagerValue]:
    """The value of the eager step of which a node is a copy that the eager step does not make."""
    while node.op == "call_function" and name_of(node.target) in _COPIES:
        node = node.all_input_nodes[0]
        if VALUE_KEY in node.meta and not node.meta[VALUE_KEY].inner:
            return [node.meta[VALUE_KEY]]
    return []


def _options(value: EagerValue, nbytes: int, eager: Graph, known: StorageCandidates) -> tuple[Option, ...]:
    """The options of a value of the joint graph: those that the eager step's has, of those that compiled code knows."""
    if eager.values[value.number].nbytes != nbytes:
        return ()
    limit = known.limits[value.number] if known.limits else _EXCLUDED
    return tuple(
        one
        for one in known.options[value.number]
        if one.store is not None
        and one.store.bits is not None
        and one.store.slope_bits is None
        and not one.store.host
        and (value.same_path or one.store.fine)
        and one.noise <= limit
    )
