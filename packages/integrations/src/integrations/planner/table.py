"""A plan as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from integrations._utils.rich_text import to_text
from integrations.planner.explained import grouped, make_lines, span
from integrations.planner.solution import Solution
from integrations.report.words import format_bytes, short_operator


def make_table(plan: Solution) -> str:
    """What happens to each module's values, below what the plan saves and takes: lines that a terminal may wrap, and a
    table of its width in which repeated modules are joined: ``*`` in their path stands for the row's numbers."""
    if not plan.segments and not plan.choice.stores:
        return f"{_title(plan)}\n{make_caption(plan)}"
    table = Table()
    table.add_column("module", overflow="fold")
    table.add_column("numbers", overflow="fold")
    for heading in ("operators", "stored as", "why"):
        table.add_column(heading, overflow="fold")
    for heading in ("plain", "held", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line, _ in grouped(make_lines(plan)):
        table.add_row(
            Text(line.module or "(model)"),  # a name may have brackets, which a string takes for markup
            span(line),
            Text(listed(line.operators)),
            line.how,
            Text(line.reason),
            format_bytes(line.nbytes) if line.nbytes else "",
            format_bytes(line.held) if line.held else "",
            f"{line.seconds / plan.plain_seconds:+.1%}" if line.seconds and plan.plain_seconds else "",
        )
    return f"{_title(plan)}\n{to_text(table)}\n{make_caption(plan)}"


def listed(operators: Sequence[str], most: int = 2) -> str:
    """The names of the first operators, without their libraries and overloads."""
    names = list(dict.fromkeys(map(short_operator, operators)))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _title(plan: Solution) -> str:
    state = " in steps that accumulate gradients" if plan.graph.accumulates else ""
    state = " in steps that clear gradients between forward and backward" if plan.graph.clears else state
    state = f" with {plan.graph.in_flight} forwards in flight" if plan.graph.in_flight > 1 else state
    also = "".join(f", or {other.graph.inputs}" for other in plan.also)
    what = f"{plan.model} for inputs {plan.graph.inputs}{also}{state}: activation peak"
    if not plan.segments and not plan.choice.stores and plan.chunked is None:
        return f"{what} {format_bytes(plan.peak)}; everything is kept, and nothing is recomputed."
    error = f", gradient's error {describe_error(plan)}" if plan.choice.rounds else ""
    return (
        f"{what} {format_bytes(plan.plain_peak)} -> {format_bytes(plan.peak)} ({plan.cut:.0%} less), time "
        f"{plan.overhead:+.1%} by the operators' {'measured' if plan.graph.measured else 'modelled'} times{error}"
    )


def describe_error(plan: Solution) -> str:
    """The relative error of the gradient, and whether it is measured or predicted."""
    known = plan.measured
    return f"{plan.choice.error:.2g} as predicted" if known is None else f"{known:.2g} as measured"


def make_caption(plan: Solution) -> str:
    """The remaining lines of a plan's text."""
    front = plan.front
    if len(front) == 1:
        lines = ["No other plan takes less memory or less time."]
    else:
        reach = f"{format_bytes(front[0].peak)} to {format_bytes(front[-1].peak)}"
        lines = [
            f"Chosen from the best {len(front)} plans, of {reach} (plan.front). "
            + ("The search tried all plans." if plan.exact else _bounds(plan)),
        ]
    if plan.segments:
        count = len(plan.segments)
        lines.append(
            f"Backward recomputes {format_bytes(sum(segment.nbytes for segment in plan.segments))} in {count} "
            f"segment{'' if count == 1 else 's'} of the forward (plan.segments)."
        )
    if plan.chunked is not None:
        lines.append(f"The loss is computed in chunks, so the whole logits of {plan.chunked.head} are never in memory.")
    more = plan.followed.seconds - plan.graph.seconds
    if more > 0 and plan.plain_seconds:
        lines.append(
            "Attention is computed a second time in backward, from the stored query, key and value: "
            f"{more / plan.plain_seconds:+.1%} of the time."
        )
    if plan.unmeasured:
        lines.append(f"The error was not measured: {plan.unmeasured}.")
    if plan.compressed:
        lines.append("Peaks are those of a step that stores tensors as the level says.")
    if plan.graph.differentiated:
        outputs = "all outputs stay" if plan.graph.holds_outputs else "no other output stays"
        lines.append(f"Backward starts from {plan.graph.differentiated}, while {outputs} in memory.")
    other = plan.accumulating
    if other is not plan:
        lines.append(
            f"Steps that accumulate gradients have an activation peak of {format_bytes(other.plain_peak)} -> "
            f"{format_bytes(other.peak)}, time {other.overhead:+.1%} (plan.accumulating)."
        )
    if plan.graph.double_backward:
        lines.append("Nothing is rounded, because the step differentiates its gradients (create_graph=True).")
    if plan.graph.note:
        lines.append(f"It was {plan.graph.note}.")
    lines.append(f"Captured in {plan.capture_seconds:.2f} s, searched in {plan.search_seconds:.2f} s.")
    return "\n".join(lines)


def _bounds(plan: Solution) -> str:
    bound = plan.choice.seconds_bound / plan.plain_seconds if plan.plain_seconds else 0.0
    return (
        f"The search did not try all plans: none takes less than {format_bytes(plan.peak_bound)}, and none of this "
        f"peak adds less time than {bound:+.1%}."
    )
