"""``with_larger_chunks``: the loss in chunks of a plan in as few chunks as the memory allows."""

from __future__ import annotations

from dataclasses import replace

from actcore import simulate
from integrations.capture.graphs.graph import Graph
from integrations.planner.chunked import chunk_op
from integrations.planner.problem import chosen_entries, training_step
from integrations.planner.solution import Found


def with_larger_chunks(plan: Found, allowed: int | None) -> Found:
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
        return int(simulate(training_step(larger, candidates), *entries).peak - graph.gradients)

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
