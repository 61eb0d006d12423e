"""A plan as one page of HTML: its numbers, its front, and what happens to each module's values."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from os import PathLike

from integrations._utils.whole_files import write_text
from integrations.planner.explained import Line, grouped, make_lines, span
from integrations.planner.plot import draw_front
from integrations.planner.solution import Solution
from integrations.planner.table import describe_error, listed, make_caption
from integrations.report.page_layout import chart_card, fill_page, heading_cells, number_card, number_cells, table_row
from integrations.report.words import format_bytes


def write_page(plan: Solution, path: str | PathLike[str]) -> None:
    """See ``Plan.page``."""
    write_text(path, make_page(plan))


def make_page(plan: Solution) -> str:
    """The page."""
    heading = f"{plan.model}, inputs {plan.graph.inputs}"
    return fill_page(
        title=f"Plan of {heading}",
        heading=heading,
        subheading="How each tensor that backward reads is stored until then",
        figures=_figures(plan),
        lines=make_caption(plan),
        charts=chart_card("Memory against time", lambda: draw_front(plan)),
        listing="Every module",
        filtered="module, operator, storage",
        headings=heading_cells(("module", "operators", "stored as", "why"), ("plain", "held", "time")),
        rows=_rows(plan),
    )


def _figures(plan: Solution) -> Iterator[str]:
    yield number_card(format_bytes(plan.plain_peak), "activation peak of the plain step")
    yield number_card(format_bytes(plan.peak), "by this plan", "main")
    yield number_card(f"{plan.overhead:+.1%}", "time")
    number, _, words = describe_error(plan).partition(" ")
    yield number_card(number, f"error of the gradient, {words}")


def _rows(plan: Solution) -> Iterator[str]:
    for number, (line, members) in enumerate(grouped(make_lines(plan))):
        several = len(members) > 1
        name = f"{line.module or '(model)'}{f' ({span(line)})' if line.numbers else ''}"
        yield _row(plan, line, name, key=str(number) if several else "")
        if several:
            for member in members:
                yield _row(plan, member, member.module or "(model)", within=str(number))


def _row(plan: Solution, line: Line, name: str, within: str = "", key: str = "") -> str:
    numbers = (
        format_bytes(line.nbytes) if line.nbytes else "",
        format_bytes(line.held) if line.held else "",
        f"{line.seconds / plan.plain_seconds:+.1%}" if line.seconds and plan.plain_seconds else "",
    )
    cells = (
        f"<td>{escape(listed(line.operators, 4))}</td><td><code>{escape(line.how)}</code></td>"
        f'<td class="why">{escape(line.reason)}</td>{number_cells(numbers)}'
    )
    text = f"{line.module} {' '.join(line.operators)} {line.how}"
    return table_row(name, cells, text, level=int(bool(within)), within=within, key=key)
