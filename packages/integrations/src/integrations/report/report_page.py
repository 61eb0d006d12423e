"""A report as one page of HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from os import PathLike

from integrations._utils.rich_text import to_text
from integrations._utils.whole_files import write_text
from integrations.report.content import Content
from integrations.report.page_layout import chart_card, fill_page, heading_cells, number_card, number_cells, table_row
from integrations.report.plot import EXPLANATION, draw_report
from integrations.report.rank_summary import ranks_table
from integrations.report.row import Row
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
    numbers = ("before", "after", "share", *(("time",) if timed else ()))
    return fill_page(
        title=report.title,
        heading=f"{report.model} at {report.level}" if report.model else f"Level {report.level}",
        subheading="The tensors that autograd saves for backward, before and after compression",
        figures=_figures(report),
        lines=report.caption,
        charts=_charts(report),
        listing="Every tensor",
        filtered="module, operator, codec",
        headings=[*heading_cells(("module", "operator", "shape", "dtype", "codec"), numbers), "<th>why</th>"],
        rows=_make_rows(make_tree(report.rows), 0, "", report.original_bytes, timed, iter(range(1 << 30))),
    )


def _charts(report: Content) -> str:
    """Return the chart, and the table of ranks if the report has one."""
    chart = chart_card("Memory over one step, and by module", lambda: draw_report(report), EXPLANATION)
    if not report.ranks:
        return chart
    table = escape(to_text(ranks_table(report.ranks)))
    return f'{chart}<section class="card"><h2>Ranks</h2><pre>{table}</pre></section>'


def _figures(report: Content) -> Iterator[str]:
    count = sum(not row.owner for row in report.rows)
    yield number_card(format_bytes(report.original_bytes), "uncompressed")
    yield number_card(format_bytes(report.stored_bytes), "compressed", "main")
    yield number_card(f"{report.ratio:.1f}×", "smaller", "main")
    if report.peak_source:
        change = format_change(report.original_peak_bytes, report.peak_bytes).replace("->", "→")
        yield number_card(change, f"step peak, {report.peak_words}")
    if report.host_bytes:
        yield number_card(format_bytes(report.host_bytes), "of that, in host memory")
    yield number_card(f"{count:,}", "tensor" if count == 1 else "tensors")
    times = [row.seconds for row in report.rows if row.seconds is not None]
    if times:
        yield number_card(format_seconds(sum(times)), "per step for compression")


def _make_rows(part: Part, level: int, within: str, whole: int, timed: bool, ids: Iterator[int]) -> Iterator[str]:
    key = str(next(ids))
    if len(part.rows) == 1 and not part.parts:
        yield _tensor_row(part.rows[0], part.name, level, within, whole, timed)
        return
    before, after = part.original_bytes, part.stored_bytes
    numbers = [format_bytes(before), format_bytes(after), format_share(before, whole)]
    if timed:
        numbers.append("" if part.seconds is None else format_seconds(part.seconds))
    cells = f'<td colspan="4" class="faint">{escape(part.operators())}</td>{number_cells(numbers)}<td></td>'
    yield table_row(part.name, cells, part.path, level=level, within=within, key=key)
    for row in part.rows:
        yield _tensor_row(row, "", level + 1, key, whole, timed)
    for inner in part.parts:
        yield from _make_rows(inner, level + 1, key, whole, timed, ids)


def _tensor_row(row: Row, name: str, level: int, within: str, whole: int, timed: bool) -> str:
    codec = short_codec(row.codec)
    numbers = [
        format_bytes(row.original_bytes) if row.original_bytes else "shared",
        format_stored(row.codec, row.stored_bytes),
        format_share(row.original_bytes, whole),
    ]
    if timed:
        numbers.append("" if row.seconds is None else format_seconds(row.seconds))
    operator = f"{row.operator or 'unknown'} {row.role}".strip()
    cells = (
        f"<td>{escape(operator)}</td><td>{format_shape(row.shape)}</td>"
        f"<td>{str(row.dtype).removeprefix('torch.')}</td><td><code>{escape(codec)}</code></td>"
        f'{number_cells(numbers)}<td class="why">{escape(row.why)}</td>'
    )
    return table_row(name, cells, " ".join((row.module, operator, codec)), level=level, within=within)
