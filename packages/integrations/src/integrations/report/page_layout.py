"""The layout of all pages: numbers on cards, charts, and a table whose rows open and close. A page fetches nothing, and
its policy forbids it to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from integrations._utils.drawing import embed_figure


def fill_page(
    *,
    title: str,
    heading: str,
    subheading: str,
    figures: Iterable[str],
    lines: str,
    charts: str,
    listing: str,
    filtered: str,
    headings: Iterable[str],
    rows: Iterable[str],
) -> str:
    """A page in this layout.

    Args:
        title, heading, subheading, lines: text; the last may have several lines.
        figures, charts, headings, rows: HTML.
        listing: what the table lists.
        filtered: what its rows are filtered by.
    """
    template = Template(files("integrations.report").joinpath("layout.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        heading=escape(heading),
        subheading=escape(subheading),
        figures="".join(figures),
        lines=escape(lines),
        charts=charts,
        listing=escape(listing),
        filtered=escape(filtered),
        headings="".join(headings),
        rows="".join(rows),
    )


def number_card(number: str, words: str, kind: str = "") -> str:
    """A number on a card."""
    return f'<div class="card {kind}"><b>{number}</b><span class="faint">{words}</span></div>'


def chart_card(heading: str, draw: Callable[[], Any], note: str = "") -> str:
    """A chart on a card. Without matplotlib, the card says so.

    Args:
        heading: text above the chart.
        draw: returns the chart as a figure of matplotlib, or ``None`` if there is nothing to draw, and so no card.
        note: text below the chart.
    """
    try:
        figure = draw()
        chart = "" if figure is None else embed_figure(figure)
    except ImportError as error:
        chart, note = f'<p class="faint note">{escape(str(error))}</p>', ""
    if not chart:
        return ""
    below = f'<p class="faint note">{escape(note)}</p>' if note else ""
    return f'<section class="card"><h2>{escape(heading)}</h2>{chart}{below}</section>'


def heading_cells(texts: Iterable[str], numbers: Iterable[str]) -> list[str]:
    """The headings of columns of text, and of columns of numbers."""
    return [*(f"<th>{text}</th>" for text in texts), *(f'<th class="number">{number}</th>' for number in numbers)]


def number_cells(numbers: Iterable[str]) -> str:
    """The cells of a row that have numbers."""
    return "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)


def table_row(name: str, cells: str, text: str, *, level: int = 0, within: str = "", key: str = "") -> str:
    """A row of the table.

    Args:
        name: text of the first cell; empty if the row above has named it.
        cells: HTML of the other cells.
        text: what the filter searches.
        level: how many rows the row is within.
        within: the key of the row that opens and closes this one; empty if none does.
        key: a key, if the row opens and closes others; else empty.
    """
    opens, mark = (f' class="part opens" data-id="{key}"', "▸") if key else ("", "")
    first = "<td></td>"
    if name:
        indent = f"padding-left:{1.2 * level:.1f}em"
        first = f'<td class="name" style="{indent}"><span class="mark">{mark}</span>{escape(name)}</td>'
    return (
        f'<tr{opens} data-within="{within}" data-level="{level}" data-text="{escape(text.lower())}">'
        f"{first}{cells}</tr>\n"
    )
