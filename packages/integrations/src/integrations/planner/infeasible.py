"""Why there is no plan within the bounds, and what would lower the least that there is. ``at_peak``: what is in
memory when a plan's step reaches its peak, for such messages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from actcore import StepUsage
from integrations.capture.graphs.graph import Graph
from integrations.planner.bounds import FULL, ONLY_RECOMPUTE, ROUNDING, WAYS, Bounds
from integrations.planner.budget import LEAST, read_fraction
from integrations.planner.choice import Choice
from integrations.planner.chunked import SHARE, logits_bytes
from integrations.planner.host_copies import first_read
from integrations.planner.problem import SimulatedStep, chosen_entries
from integrations.planner.solution import Solution
from integrations.report.words import format_bytes, short_operator

_SMALLER = "take a smaller batch"  # no way for a fraction: the plain step's peak is less then, too


def why_infeasible(plan: Solution, asked: Bounds) -> str:
    """Return why no plan of a front keeps to bounds, in words."""
    allowed = plan.allowed(asked.memory)
    few = allowed is not None and allowed < plan.front[0].peak
    return out_of_memory(plan, asked) if few else out_of_time(plan, asked)


def out_of_memory(plan: Solution, asked: Bounds) -> str:
    """Return why no plan has such a peak, in words."""
    needs = f". Besides, {_needed_for_time(plan, asked)}" if asked.time is not None else ""
    return f"{_too_little_memory(plan, asked)}{_occupied(plan)}{_without_logits(plan)}{needs}"


def _too_little_memory(plan: Solution, asked: Bounds) -> str:
    budget, least, plain = asked.memory, plan.front[0].peak, plan.whole
    relative = read_fraction(budget) is not None
    share = round_up_share(least, plain) if 0 < least <= plain else None
    step = "plain step" if plain == plan.uncompressed_peak else "largest plain step"
    of_plain = "" if share is None else f", {share} of the {step}'s {format_bytes(plain)}"
    found = f"at least {least} bytes ({format_bytes(least)}{of_plain})"
    number = share if relative else least
    if plan.compressed:
        smaller = "" if relative else f"{_SMALLER}, or "
        name, word = ("checkpoint", "optimal") if plan.stores == ONLY_RECOMPUTE else ("memory", LEAST)
        enough = "" if number is None else f"{name}={number!r}, "
        return (
            f"{name}{_in_flight(plan, ' with ')} must be a budget of {found} at this level, got {budget!r}; "
            f"{smaller}call integrations.restore_model(model), then compress_model with {enough}{name}={word!r}, or a "
            "level of fewer bits"
        )
    title = "memory" if plan.candidates is None else f"memory with error={plan.error:g}"
    title += _in_flight(plan, " and " if plan.candidates is not None else " with ")
    # Bytes hold for steps that accumulate gradients, too; a fraction is of each kind of step's own peak.
    beside = least if relative or plan.graph.accumulates or plan.graph.clears else plan.accumulating.front[0].peak
    if beside > least:
        found = f"{found}, or {beside} bytes ({format_bytes(beside)}) if steps accumulate gradients"
    more = f", or memory={beside!r} to accumulate gradients" if beside > least else ""
    ways = [f"pass memory={LEAST!r}" if number is None else f"pass memory={number!r}{more}, or memory={LEAST!r}"]
    ways += [f"allow {one}" for one in _allowing(plan)]
    ways += [] if relative else [_SMALLER]
    return f"{title} must be {found}, got {budget!r}; {_only_accumulating(plan, asked)}{', or '.join(ways)}"


def _in_flight(plan: Solution, before: str) -> str:
    """Return the number of forwards in flight as the argument that names it; empty for one."""
    count = plan.graph.in_flight
    return f"{before}in_flight={count}" if count > 1 else ""


def _only_accumulating(plan: Solution, asked: Bounds) -> str:
    """Return a sentence on a fraction that only steps that accumulate gradients can keep to; empty for others. Their
    plain peak is larger, so that the fraction allows more bytes."""
    fraction = read_fraction(asked.memory)
    if fraction is None or plan.graph.accumulates:
        return ""
    other = plan.accumulating
    if other.peak > fraction * other.whole:
        return ""
    return (
        f"steps that accumulate gradients can go from {format_bytes(other.plain_peak)} to {format_bytes(other.peak)}: "
        f"for those, pass memory={other.peak}. Otherwise "
    )


def round_up_share(least: int, plain: int) -> float:
    """Return bytes as a fraction of others, rounded up to thousandths, so that the fraction allows them."""
    return min(1000, 1000 * least // plain + 1) / 1000


def out_of_time(plan: Solution, asked: Bounds) -> str:
    """Return why no plan within the memory is as fast, and what memory such a time takes, in words."""
    bounded = asked.memory not in (None, LEAST)
    fastest = plan.within(asked.memory) if bounded else plan.choosing(plan.front[-1], asked)
    found = f"time must be at least {_round_up_time(plan, fastest.choice)}, the least "
    ways = [*(f"allow {one}" for one in _allowing(plan)), _SMALLER]
    if not bounded:
        memory = format_bytes(fastest.peak)
        return f"{found}of all plans, which takes {memory}, got {asked.time!r}; {', or '.join(ways)}"
    fitting = _find_in_time(plan, asked)
    if fitting is not None:
        peak, plain = fitting.peak, plan.whole
        number = round_up_share(peak, plain) if read_fraction(asked.memory) is not None and peak <= plain else peak
        ways = [f"pass memory={number!r}", *ways]
    needs = _needed_for_time(plan, asked)
    return f"{found}within memory={asked.memory!r}, got {asked.time!r}; {needs}: {', or '.join(ways)}"


def _find_in_time(plan: Solution, asked: Bounds) -> Choice | None:
    """Return the choice of the least memory that takes at most the time that was asked for."""
    seconds = ((asked.time or 1.0) - 1) * plan.plain_seconds
    return next((choice for choice in plan.front if choice.seconds <= seconds), None)


def _needed_for_time(plan: Solution, asked: Bounds) -> str:
    """Return the memory that the time takes that was asked for, in words."""
    fitting = _find_in_time(plan, asked)
    if fitting is not None:
        return f"time={asked.time!r} takes at least {fitting.peak} bytes ({format_bytes(fitting.peak)})"
    least = plan.front[-1]
    return f"the least time in any memory is {_round_up_time(plan, least)}, which takes {format_bytes(least.peak)}"


def _round_up_time(plan: Solution, choice: Choice) -> float:
    """Return the time of a choice over the plain step's, rounded up, so that it can be met."""
    overhead = choice.seconds / plan.plain_seconds if plan.plain_seconds else 0.0
    return math.ceil(1000 * (1 + overhead)) / 1000


def _allowing(plan: Solution) -> list[str]:
    """Return what may be allowed to lower the least that there is, in words."""
    if plan.compressed or plan.candidates is None:
        return []
    found = [f"a larger error than {plan.error:g}"] if _rounds_as_allowed(plan) else []
    ways = [way for way in WAYS if plan.error or way not in ROUNDING]
    missing = [repr(way) for way in ways if way not in plan.stores]
    return found + ([f"{', '.join(missing)} among stores"] if missing else [])


def _without_logits(plan: Solution) -> str:
    """Return a hint that no plan makes a loss's logits smaller. Return an empty string if the logits are small, or the
    model cannot compute the loss without them."""
    largest = logits_bytes(plan.graph)
    if not plan.chunking or plan.chunked is not None or largest * SHARE < plan.front[0].peak:
        return ""
    way_out = (
        "leave out loss='full', which prevents computing the loss without them"
        if plan.bounds.loss == FULL
        else f"{plan.chunking} together with memory computes the loss without them"
    )
    return f". The loss takes {format_bytes(largest)} or more for its logits, which no plan makes smaller: {way_out}"


def _occupied(plan: Solution) -> str:
    """Return a sentence on what is in memory at the peak of the plan of the least memory. Return an empty string for a
    plan for a level, whose stores have no names."""
    if plan.compressed:
        return ""
    least = plan.choosing(plan.front[0], plan.bounds)
    found = at_peak(least)
    parts = [f"{format_bytes(nbytes)} {what}" for nbytes, what in found.largest()]
    if beside := found.beside():
        parts.append(f"and {format_bytes(beside)} of other tensors")
    stays = f"; the peak does not count the {format_bytes(found.stays)} of gradients that the step leaves"
    return f". At that peak, {found.moment}, memory holds {', '.join(parts)}{stays if found.stays else ''}"


def _rounds_as_allowed(plan: Solution) -> bool:
    """Whether the bound on the error may keep the plan of the least memory from less memory: the plan uses at least
    half of the allowed variance. Return ``False`` for exact plans: an estimate of what rounding allows is told besides,
    or the plan must not round."""
    return plan.error > 0 and plan.front[0].variance >= plan.error**2 / 2


@dataclass(frozen=True)
class AtPeak:
    """What is in memory at the highest moment of a step. The activation peak is less by ``stays``.

    Attributes:
        values: the values, each as bytes and the operator that made it, by falling size.
        gradients: bytes of the parameters' gradients that are complete, or that the running part of backward makes.
        rest: bytes of all else: other gradients, and what operators take while they run.
        in_flight: bytes that the other forwards in flight hold.
        stays: bytes of the gradients that the step leaves, which its activation peak does not count.
        moment: the moment, in words: ``"in the backward of fc1"``.
    """

    values: tuple[tuple[int, str], ...]
    gradients: int
    rest: int
    stays: int
    moment: str
    in_flight: int = 0

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(nbytes for nbytes, _ in self.values) + self.gradients + self.rest + self.in_flight

    def largest(self, most: int = 3) -> list[tuple[int, str]]:
        """Return the largest parts, each as bytes and words, by falling size."""
        parts = [(nbytes, f"made by {maker}") for nbytes, maker in self.values]
        of_rest = "activations" if self.stays else "activations and parameters"
        parts += [(self.gradients, "of gradients of parameters")]
        parts += [(self.in_flight, "of saved tensors of other forwards in flight")]
        parts += [(self.rest, f"of gradients of {of_rest} and of operators' workspaces")]
        return sorted(((nbytes, what) for nbytes, what in parts if nbytes), key=lambda part: -part[0])[:most]

    def beside(self, most: int = 3) -> int:
        """Return the bytes of all that is not among the largest parts."""
        return self.nbytes - sum(nbytes for nbytes, _ in self.largest(most))


def at_peak(plan: Solution) -> AtPeak:
    """Return what is in memory when the step of a plan's choice reaches its peak.

    Args:
        plan: a plan for a model whose values are kept, stored or recomputed; not one for a level.
    """
    graph, choice = plan.followed, plan.choice
    candidates = plan.candidates_for(choice)
    usage = SimulatedStep(graph, candidates).usage(chosen_entries(choice, candidates))
    event = usage.event
    there = sorted(_there(plan, graph, choice, usage), reverse=True)
    values = tuple((nbytes, _maker(graph, -number)) for nbytes, number in there)
    waiting = (graph.in_flight - 1) * plan.held
    other = max(0, usage.nbytes[event] - waiting - sum(nbytes for nbytes, _ in there))
    gradients = min(other, _made_gradients(graph, event))
    return AtPeak(values, gradients, other - gradients, graph.gradients, _moment(graph, event), waiting)


def _made_gradients(graph: Graph, event: int) -> int:
    """Return the bytes of the parameters' gradients that are complete when backward next reads a saved value after an
    event: those that the event makes are complete by then. 0 if they are not known."""
    if not graph.standing:
        return 0
    if event < len(graph.ops):
        return graph.standing[event]
    later = range(event + 1, len(graph.standing))
    reads = graph.steps[event - len(graph.ops)].reads
    following = (one for one in later if graph.steps[one - len(graph.ops)].reads not in ((), reads))
    number = next(following, None)
    return graph.gradients if number is None else graph.standing[number]


def _moment(graph: Graph, event: int) -> str:
    """Return where the step is at an event, in words."""
    if event < len(graph.ops):
        name = graph.ops[event].module
        return f"in the forward of {name}" if name else "in the forward"
    reads = set(graph.steps[event - len(graph.ops)].reads)
    name = next((op.module for op in graph.ops if reads and reads <= set(op.packs)), "")
    return f"in the backward of {name}" if name else "in backward"


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
    return f"{short_operator(op.name)} in {op.module or 'the model itself'}"
