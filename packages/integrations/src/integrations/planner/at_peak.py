"""``largest_at_peak``: the largest values in memory when a plan's step reaches its peak, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actcore import StepUsage, simulate
from integrations.capture.graphs.graph import Graph
from integrations.planner.choice import Choice
from integrations.planner.host_copies import first_read
from integrations.planner.problem import chosen_entries, training_step
from integrations.planner.solution import Solution


@dataclass(frozen=True)
class AtPeak:
    """What is in memory at the highest moment of a step.

    Attributes:
        values: the largest values, each as bytes and the operator that made it, by falling size.
        others: how many more values there are.
        rest: bytes of all else: gradients of activations, and what operators take while they run.
        later: bytes of the parameters' gradients that are made after the moment. The activation peak does not count the
            gradients that a step leaves, so it is less than what is in memory by these.
        backward: whether the moment is in backward.
    """

    values: tuple[tuple[int, str], ...]
    others: int
    rest: int
    later: int
    backward: bool


def largest_at_peak(plan: Solution, most: int = 3) -> AtPeak:
    """Return the largest values that are in memory when the step of a plan's choice reaches its peak.

    Args:
        plan: a plan for a model whose values are kept, stored or recomputed; not one for a level.
        most: how many values are named.
    """
    graph, choice = plan.followed, plan.choice
    usage = _usage(plan, graph, choice)
    event = usage.event
    there = sorted(_there(plan, graph, choice, usage), reverse=True)
    named = tuple((nbytes, _maker(graph, -number)) for nbytes, number in there[:most])
    complete = graph.standing[event] if graph.standing else 0
    rest = usage.nbytes[event] - sum(nbytes for nbytes, _ in there) - complete
    return AtPeak(named, max(0, len(there) - most), max(0, rest), graph.gradients - complete, event >= len(graph.ops))


def _usage(plan: Solution, graph: Graph, choice: Choice) -> StepUsage:
    candidates = plan.candidates_for(choice)
    return simulate(training_step(graph, candidates), *chosen_entries(choice, candidates))


def _there(plan: Solution, graph: Graph, choice: Choice, usage: StepUsage) -> Iterable[tuple[int, int]]:
    """Yield the bytes of each value that is in memory at the peak, and its number with a minus sign, so that sorting
    puts the first of equal ones in front."""
    event, candidates, stores = usage.event, plan.candidates_for(choice), dict(choice.stores)
    ends, reads = _forward_ends(graph), _last_reads(graph)
    made: dict[int, int] = {}  # by recomputed value: the event in which backward makes it
    for segment in (*usage.segments, *usage.inner):
        read = first_read(graph, segment, plan.schedule.recomputed)
        at = len(graph.ops) if read is None else read
        for number in segment:
            for made_here in graph.ops[number].makes:
                made[made_here] = min(at, made.get(made_here, at))
            for read in graph.ops[number].reads:
                reads[read] = max(reads[read], at)
    for number, value in enumerate(graph.values):
        waits = number in plan.schedule.recomputed
        store = stores.get(number)
        held = value.nbytes if store is None else candidates.option(number, store).held
        begin = made.get(number, len(usage.nbytes)) if waits else max(value.producer, candidates.stored_at[number])
        if value.producer <= event <= ends[number]:
            yield value.nbytes, -number
        elif begin <= event <= reads[number] and held:
            yield held, -number


def _forward_ends(graph: Graph) -> list[int]:
    """Return for each value the last event at which the forward or its caller holds it uncompressed."""
    ends = [value.producer for value in graph.values]
    for number, op in enumerate(graph.ops):
        for read in op.reads:
            ends[read] = number
    for value in graph.values:
        if value.reuses >= 0:
            ends[value.reuses] = value.producer - 1
    return [max(end, value.until) for end, value in zip(ends, graph.values, strict=True)]


def _last_reads(graph: Graph) -> list[int]:
    """Return for each value the last event at which backward reads it; -1 if backward does not read it."""
    reads = [-1] * len(graph.values)
    for number, step in enumerate(graph.steps, len(graph.ops)):
        for value in step.reads:
            reads[value] = number
    return reads


def _maker(graph: Graph, number: int) -> str:
    """Return the module and the operator that make a value, in words."""
    op = graph.ops[graph.values[number].producer]
    if op.name.startswith("integrations.linear_cross_entropy"):
        return "the loss in chunks"
    return f"{op.name.removeprefix('aten.').split('.')[0].strip('_')} in {op.module or 'the model itself'}"
