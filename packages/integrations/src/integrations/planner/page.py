"""A plan as one page of HTML: its numbers, its front, and what happens to each module's values. It fetches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from os import PathLike

from integrations._utils.whole_files import write_text
from integrations.planner.explained import Line, grouped, make_lines, span
from integrations.planner.solution import Solution
from integrations.planner.table import describe_error, listed, make_caption
from integrations.report.page import cells, figure, filled
from integrations.report.svg import front
from integrations.report.words import format_bytes


def write_page(plan: Solution, path: str | PathLike[str]) -> None:
    """See ``Plan.page``."""
    write_text(path, make_page(plan))


def make_page(plan: Solution) -> str:
    """The page."""
    heading = f"{plan.model}, inputs {plan.graph.inputs}"
    return filled(
        title=f"Plan of {heading}",
        heading=heading,
        subheading="How each value that backward reads waits for it",
        figures=_figures(plan),
        lines=make_caption(plan),
        charts=f'<section class="card"><h2>Memory against time</h2>{_chart(plan)}</section>',
        listing="Every module",
        filtered="module, operator, how it waits",
        headings=_headings(),
        rows=_rows(plan),
    )


def _figures(plan: Solution) -> Iterator[str]:
    yield figure(format_bytes(plan.plain_peak), "activation peak of the plain step")
    yield figure(format_bytes(plan.peak), "by this plan", "main")
    yield figure(f"{plan.overhead:+.1%}", "time")
    number, _, words = describe_error(plan).partition(" ")
    yield figure(number, f"error of the gradient, {words}")


def _chart(plan: Solution) -> str:
    whole = plan.plain_seconds or 1.0
    points = [(choice.peak, 100 * choice.seconds / whole) for choice in plan.front]
    return front(points, (plan.peak, 100 * plan.overhead))


def _headings() -> Iterator[str]:
    for heading in ("module", "operators", "waits for backward", "why"):
        yield f"<th>{heading}</th>"
    for heading in ("plain", "held", "time"):
        yield f'<th class="number">{heading}</th>'


def _rows(plan: Solution) -> Iterator[str]:
    for number, (line, members) in enumerate(grouped(make_lines(plan))):
        several = len(members) > 1
        name = f"{line.module or '(model)'}{f' ({span(line)})' if line.numbers else ''}"
        yield _row(plan, line, name, str(number) if several else "", "")
        if several:
            for member in members:
                yield _row(plan, member, member.module or "(model)", "", str(number))


def _row(plan: Solution, line: Line, name: str, key: str, within: str) -> str:
    opens, mark = ('part opens" data-id="' + key, "▸") if key else ("", "")
    numbers = (
        format_bytes(line.nbytes) if line.nbytes else "",
        format_bytes(line.held) if line.held else "",
        f"{line.seconds / plan.plain_seconds:+.1%}" if line.seconds and plan.plain_seconds else "",
    )
    operators, text = listed(line.operators, 4), f"{line.module} {' '.join(line.operators)} {line.how}"
    return (
        f'<tr class="{opens}" data-within="{within}" data-level="{int(bool(within))}" '
        f'data-text="{escape(text.lower())}"><td class="name" style="padding-left:{1.2 * bool(within):.1f}em">'
        f'<span class="mark">{mark}</span>{escape(name)}</td><td>{escape(operators)}</td>'
        f"<td><code>{escape(line.how)}</code></td>"
        f'<td class="why">{escape(line.reason)}</td>{cells(numbers)}</tr>\n'
    )
