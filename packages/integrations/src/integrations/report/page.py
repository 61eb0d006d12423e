"""A report as one page of HTML. It fetches nothing, and its policy forbids it to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from os import PathLike
from string import Template

from integrations._utils.whole_files import write_text
from integrations.report.content import Content
from integrations.report.row import Row
from integrations.report.svg import bars, step
from integrations.report.tree import Part, make_tree
from integrations.report.words import (
    format_bytes,
    format_change,
    format_seconds,
    format_shape,
    format_share,
    format_stored,
    short_codec,
)


def write_page(report: Content, path: str | PathLike[str]) -> None:
    """See ``Report.html``."""
    write_text(path, make_page(report))


def make_page(report: Content) -> str:
    """The page."""
    timed = any(row.seconds is not None for row in report.rows)
    return filled(
        title=report.title,
        heading=f"{report.model} at {report.level}" if report.model else f"Level {report.level}",
        subheading="What autograd keeps from forward to backward, and what is kept instead",
        figures=_figures(report),
        lines=report.caption,
        charts=_charts(report),
        listing="Every tensor",
        filtered="module, operator, codec",
        headings=_headings(timed),
        rows=_make_rows(make_tree(report.rows), 0, "", report.original_bytes, timed, iter(range(1 << 30))),
    )


def filled(
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
    template = Template(files("integrations.report").joinpath("page.html").read_text(encoding="utf-8"))
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


def _figures(report: Content) -> Iterator[str]:
    count = sum(not row.owner for row in report.rows)
    yield figure(format_bytes(report.original_bytes), "as autograd keeps it")
    yield figure(format_bytes(report.stored_bytes), "compressed", "main")
    yield figure(f"{report.ratio:.1f}×", "smaller", "main")
    if report.peak_source:
        change = format_change(report.original_peak_bytes, report.peak_bytes).replace("->", "→")
        yield figure(change, f"step peak, {report.peak_words}")
    if report.host_bytes:
        yield figure(format_bytes(report.host_bytes), "of that, in host memory")
    yield figure(f"{count:,}", "tensor" if count == 1 else "tensors")
    times = [row.seconds for row in report.rows if row.seconds is not None]
    if times:
        yield figure(format_seconds(sum(times)), "a step for compression")


def figure(number: str, words: str, kind: str = "") -> str:
    """A number on a card."""
    return f'<div class="card {kind}"><b>{number}</b><span class="faint">{words}</span></div>'


def _charts(report: Content) -> str:
    drawn = step(report.rows, report.gradient_bytes)
    if not drawn:
        return ""
    return (
        f'<div class="halves"><section class="card">{drawn}</section>'
        f'<section class="card"><h2>By module</h2>{bars(report.rows)}</section></div>'
    )


def _headings(timed: bool) -> Iterator[str]:
    for heading in ("module", "operator", "shape", "dtype", "codec"):
        yield f"<th>{heading}</th>"
    for heading in ("before", "after", "share", *(("time",) if timed else ())):
        yield f'<th class="number">{heading}</th>'
    yield "<th>why</th>"


def _make_rows(part: Part, level: int, within: str, whole: int, timed: bool, ids: Iterator[int]) -> Iterator[str]:
    key = str(next(ids))
    alone = part.rows if len(part.rows) == 1 and not part.parts else []
    name = f'<td class="name" style="padding-left:{1.2 * level:.1f}em">'
    if alone:
        yield _tr(level, within, alone[0], f'{name}<span class="mark"></span>{escape(part.name)}</td>', whole, timed)
        return
    before, after = part.original_bytes, part.stored_bytes
    numbers = [format_bytes(before), format_bytes(after), format_share(before, whole)]
    if timed:
        numbers.append("" if part.seconds is None else format_seconds(part.seconds))
    yield (
        f'<tr class="part opens" data-id="{key}" data-within="{within}" data-level="{level}" '
        f'data-text="{escape(part.path.lower())}">{name}<span class="mark">▸</span>{escape(part.name)}</td>'
        f'<td colspan="4" class="faint">{escape(part.operators())}</td>{cells(numbers)}<td></td></tr>\n'
    )
    for row in part.rows:
        yield _tr(level + 1, key, row, "<td></td>", whole, timed)
    for inner in part.parts:
        yield from _make_rows(inner, level + 1, key, whole, timed, ids)


def _tr(level: int, within: str, row: Row, name: str, whole: int, timed: bool) -> str:
    codec = short_codec(row.codec)
    numbers = [
        format_bytes(row.original_bytes) if row.original_bytes else "shared",
        format_stored(row.codec, row.stored_bytes),
        format_share(row.original_bytes, whole),
    ]
    if timed:
        numbers.append("" if row.seconds is None else format_seconds(row.seconds))
    operator = f"{row.operator or 'unknown'} {row.role}".strip()
    text = " ".join((row.module, operator, codec)).lower()
    return (
        f'<tr data-within="{within}" data-level="{level}" data-text="{escape(text)}">{name}<td>{escape(operator)}</td>'
        f"<td>{format_shape(row.shape)}</td><td>{str(row.dtype).removeprefix('torch.')}</td>"
        f'<td><code>{escape(codec)}</code></td>{cells(numbers)}<td class="why">{escape(row.why)}</td></tr>\n'
    )


def cells(numbers: Iterable[str]) -> str:
    """The cells of a row that have numbers."""
    return "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)
