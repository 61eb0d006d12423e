"""The plans beside a plan, from the same captures: within other bounds, for other states of the gradients, for less
memory where it ran out, without rounding, and with larger chunks of the loss.

What further searches find is kept with the plan, in ``Plan.others``, which all plans made of it share.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from integrations._utils.progress import progress
from integrations._utils.warn import warn
from integrations.capture.graphs.graph import Graph
from integrations.planner.accumulation import accumulating_plan, note_accumulating
from integrations.planner.bounds import Bounds
from integrations.planner.budget import (
    AUTO,
    LEAST,
    Budget,
    allowed_bytes,
    read_fraction,
    require_error,
    require_ratio,
)
from integrations.planner.choice import Choice
from integrations.planner.chunked import chunk_op
from integrations.planner.errors import BudgetError
from integrations.planner.infeasible import out_of_memory, out_of_time
from integrations.planner.problem import SimulatedStep, chosen_entries
from integrations.planner.search import Captures, most_exact, solved
from integrations.planner.solution import Found, Solution
from integrations.report.words import format_bytes

_ACCUMULATING, _CLEARING = "accumulating", "clearing"
_LITTLE = 0.01
"""A part of the plain step's time that is not worth a search."""


def within(plan: Found, memory: Budget | None, time: float | None, error: float | None) -> Found:
    """See ``Plan.within``.

    Raises:
        TypeError, ValueError: as there.
    """
    if time is not None:
        require_ratio(time)
    if error is not None:
        require_error(error)
    found = _within(plan, memory, time, error)
    if not plan.also:
        return found
    if read_fraction(memory) is not None:  # of the largest peak, which is this plan's
        memory = _count_bytes(plan, memory)
    also: tuple[Any, ...] = plan.also
    return found.with_also(_within(other, memory, time, error) for other in also)


def accumulating(plan: Found) -> Found:
    """See ``Plan.accumulating``."""
    known = accumulating_plan(plan)
    if known is not None:
        return known
    if _ACCUMULATING not in plan.others:
        rounded = None if plan.rounded is None else plan.rounded.accumulating
        bounds = _unbounded(plan, plan.error)
        plan.others[_ACCUMULATING] = _searched(plan, plan.graph.accumulating, rounded, bounds)
    found: Found = plan.others[_ACCUMULATING]
    if plan.is_bounded:
        with suppress(ValueError):  # if that cannot be had, the plan of the least peak
            found = found.within(plan.memory, plan.time)
    note_accumulating(plan, found)  # each forward asks, and what follows a plan knows it by identity
    return found


def clearing(plan: Found) -> Found:
    """See ``Plan.clearing``."""
    if _fits_where_cleared(plan, plan.choice):
        return plan
    other = plan.accumulating
    most = plan.seconds + _LITTLE * plan.plain_seconds  # a plan for such steps is hardly faster than this plan
    if other.seconds <= most and _fits_where_cleared(plan, other.choice):
        return other
    if _CLEARING not in plan.others:
        rounded = None if plan.rounded is None else plan.rounded.clearing
        plan.others[_CLEARING] = _searched(plan, plan.graph.clearing, rounded, _unbounded(plan, plan.error))
    found: Found = plan.others[_CLEARING]
    if plan.is_bounded:
        with suppress(ValueError):  # if that cannot be had, the plan of the least peak
            found = found.within(plan.memory, plan.time)
    faster = other.seconds <= found.seconds and _fits_where_cleared(plan, other.choice)
    return other if faster or found.choice.rounds else found


def _fits_where_cleared(plan: Solution, choice: Choice) -> bool:
    """Return whether a choice keeps to a plan's memory in bytes if the last gradients are there in the forward."""
    if plan.compressed or plan.memory in (None, LEAST):
        return False
    graph, candidates = plan.graph_of(choice).clearing, plan.candidates_for(choice)
    allowed = allowed_bytes(plan.memory, plan.wholes[2]) or 0
    return SimulatedStep(graph, candidates).peak(chosen_entries(choice, candidates)) <= allowed


def fits_beside_gradients(plan: Solution, other: Solution) -> bool:
    """Return whether a step keeps to the memory of a plan if it follows another plan for the same inputs and finds
    gradients.

    Args:
        plan: the plan for steps that find none.
        other: the other plan.
    """
    if other.graph.accumulates or not plan.graph.standing:
        return True
    beside = plan.accumulating
    allowed = beside.allowed(beside.memory)
    graph, candidates = plan.graph_of(other.choice).accumulating, other.candidates_for(other.choice)
    peak = SimulatedStep(graph, candidates).peak(chosen_entries(other.choice, candidates))
    return peak <= max(beside.peak, allowed or 0)


def _within(plan: Found, memory: Budget | None, time: float | None, error: float | None) -> Found:
    """The plan within bounds, without the plans beside it."""
    of_error = plan if error is None else _of_error(plan, error)
    allowed = _count_bytes(of_error, memory)
    asked = replace(of_error.bounds, memory=memory, time=time)
    if of_error.chunked is not None:  # choices of the front are those of the captured chunks
        of_error = of_error.in_chunks(replace(of_error.chunked, rows=of_error.chunked.least_rows))
    found = _chosen(of_error, asked, allowed)
    if allowed is None or time is None or of_error.error == 0 or found.choice.variance == 0:
        return _with_larger_chunks(found, allowed)
    return _with_larger_chunks(of_error.choosing(_most_exact(of_error, allowed, time), asked), allowed)


def _chosen(plan: Found, asked: Bounds, allowed: int | None) -> Found:
    """The plan of the front for what is asked. ``allowed`` is the memory in bytes."""
    fitting = [choice for choice in plan.front if allowed is None or choice.peak <= allowed]
    if not fitting:
        raise BudgetError(out_of_memory(plan, asked))
    if asked.time is None:
        return plan.choosing(fitting[0] if allowed is None else fitting[-1], asked)
    seconds = plan.seconds_within(asked.time)
    fitting = [choice for choice in fitting if choice.seconds <= seconds]
    if not fitting:
        raise BudgetError(out_of_time(plan, asked))
    return plan.choosing(fitting[0], asked)


def _most_exact(plan: Solution, allowed: int, time: float) -> Choice:
    """The choice of the least error within a peak and a time that some choice of the front keeps to."""
    try:  # a choice that rounds nothing belongs to the other graph
        exact = _of_error(plan, 0.0)
        return _chosen(exact, replace(exact.bounds, time=time), allowed).choice
    except ValueError:
        seconds = plan.seconds_within(time)
    fitting = [choice for choice in plan.front if choice.peak <= allowed and choice.seconds <= seconds]
    best = most_exact(plan, allowed, seconds)
    return min([*fitting, *([] if best is None else [best])], key=lambda choice: choice.variance)


def _of_error(plan: Found, error: float) -> Found:
    """The plan for another bound on the error, without one on memory or time."""
    if error == plan.error:
        return plan
    if plan.compressed:
        raise ValueError(
            f"error must be None with a level, because the level chooses how tensors are stored, got {error!r}"
        )
    if error not in plan.others:
        made = _searched(plan, plan.graph, plan.rounded, _unbounded(plan, error))
        made.others[plan.error] = plan
        plan.others[error] = made
    found: Found = plan.others[error]
    return found


def _searched(plan: Found, graph: Graph, rounded: Graph | None, bounds: Bounds) -> Found:
    """A plan of this kind for other graphs of the same values."""
    captures = Captures(graph, plan.candidates, rounded, plan.rounded_candidates, plan.level)
    with progress(f"Planning {plan.model}") as stage:
        stage("searching")
        found = solved(type(plan), plan.model, captures, bounds, plan.objective)
    return found.with_context(plan)


def _unbounded(plan: Solution, error: float) -> Bounds:
    """A plan's bounds with this one on the error and none on memory and time."""
    return replace(plan.bounds, memory=None, time=None, error=None if plan.compressed else error)


def _count_bytes(plan: Solution, memory: Budget | None) -> int | None:
    """Return the bytes that a bound on memory allows; ``None`` if there is no bound."""
    if memory == AUTO:
        raise ValueError(f"memory must be in bytes or a fraction for a finished plan, got {memory!r}")
    return plan.allowed(memory)


def _with_larger_chunks(plan: Found, allowed: int | None) -> Found:
    """Return a plan whose loss is computed in the fewest chunks that its peak and the memory leave room for.

    Each chunk is added to a gradient as large as the head's weight, so that fewer chunks take less time. The plan stays
    as it is if it has no such loss, is for a level, nests its checkpoints, or has too little room.

    Args:
        plan: a plan whose loss is in chunks of the captured size.
        allowed: bytes that the activation peak may have; ``None`` for no more than it has.
    """
    chunked, graph = plan.chunked, plan.followed
    number = chunk_op(graph)
    if chunked is None or number is None or not chunked.least_rows:
        return plan
    if plan.compressed or plan.choice.held is not None:
        return plan
    count = graph.ops[number].shapes[0][0]
    limit, least = max(plan.peak, allowed or 0), min(count, chunked.least_rows)
    most = min(count, max(chunked.most_rows, least))
    candidates = plan.candidates_for(plan.choice)
    entries = chosen_entries(plan.choice, candidates)

    def peak_of(chunks: int) -> int:
        larger = _with_rows(graph, number, -(-count // chunks), least)
        return SimulatedStep(larger, candidates).peak(entries)

    few, many = -(-count // most), -(-count // least)  # the most chunks are those of the captured step
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if peak_of(middle) <= limit else (middle + 1, many)
    rows = -(-count // many)
    if rows <= least:
        return plan
    choice = replace(plan.choice, peak=max(plan.peak, peak_of(many)))
    return plan.choosing(choice, plan.bounds).in_chunks(replace(chunked, rows=rows))


def _with_rows(graph: Graph, number: int, rows: int, before: int) -> Graph:
    """Return a graph whose loss has chunks of so many rows, which take memory in proportion."""
    op = graph.ops[number]
    larger = replace(op, scratch=-(-op.scratch * rows // before))
    return replace(graph, ops=(*graph.ops[:number], larger, *graph.ops[number + 1 :]))


_SHARE = 0.9


def _less_memory(followed: Solution) -> Budget | None:
    """Return the budget that is a tenth less than a plan takes: a fraction if its budget is one, otherwise bytes;
    ``None`` if it has no budget that can be lowered."""
    if followed.memory in (None, LEAST):
        return None
    share = _SHARE * followed.peak
    return int(share) if read_fraction(followed.memory) is None else share / followed.whole


def less_in_words(followed: Solution) -> str:
    """Return what to pass as ``memory`` for a tenth less than a plan takes; empty if that cannot be lowered."""
    less = _less_memory(followed)
    if less is None:
        return ""
    return f"memory={less:.3g}" if isinstance(less, float) else f"memory={format_bytes(int(less))!r}"


def within_less(plan: Found, followed: Solution) -> Found:
    """Return the plan of the same captures for a tenth less memory.

    Args:
        plan: the plan for the forward's inputs.
        followed: what the forward followed: ``plan``, or the plan beside it for the state of its gradients.

    Raises:
        BudgetError: there is no such plan.
    """
    memory = _less_memory(followed)
    if memory is None:
        raise BudgetError("the plan has no budget that can be lowered")
    found = plan.within(memory, plan.time)
    graph = followed.graph
    other = found.accumulating if graph.accumulates else found.clearing if graph.clears else found
    if other.peak >= followed.peak:
        raise BudgetError(f"no plan takes less than {format_bytes(followed.peak)}")
    if found.choice.rounds and found.measured is None:
        found = replace(found, unmeasured="the plan was made when memory had run out")
    return found


def unrounded(plan: Found, falls_back: bool = False) -> Found:
    """Return the plan for the same memory and time that rounds nothing, from the same captures.

    Args:
        plan: a plan that may round.
        falls_back: whether to return the plan of the least memory if there is none, with a warning.

    Raises:
        BudgetError: there is none. The message names the lowest possible bound.
    """
    try:
        found = plan.within(plan.memory, plan.time, 0.0)
    except ValueError as error:
        told = (
            f"the step of this {plan.model} differentiates its gradients (create_graph=True), so its plan must not "
            f"round: {error}"
        )
        if not falls_back:
            raise BudgetError(told) from None
        warn(f"{told}. The plan with the least memory is used, because fallback='{LEAST}' was passed")
        found = plan.within(LEAST, None, 0.0)
    also: tuple[Any, ...] = found.also
    return marked(found).with_also(marked(other) for other in also)


def marked(plan: Found) -> Found:
    """Return the plan with the mark that it rounds nothing because of double backward."""
    graph = replace(plan.graph, double_backward=True)
    return replace(plan, graph=graph, rounded=None, rounded_candidates=None)
