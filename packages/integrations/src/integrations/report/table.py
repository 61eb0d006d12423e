"""A report as a rich table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from integrations.report.content import Content
from integrations.report.row import Row
from integrations.report.tree import Part, tree_of
from integrations.report.words import (
    format_bytes,
    format_seconds,
    format_shape,
    format_share,
    format_stored,
    short_codec,
)


def full_table(report: Content) -> Table:
    """Every tensor that autograd alone keeps, below its module; each module with its sums."""
    table = _table(report, ("module", "operator", "shape", "dtype", "codec"))
    timed = _numbers(table, report)
    table.add_column("why", overflow="fold")
    whole = report.original_bytes
    if report.rows:
        _add_part(table, tree_of(report.rows), 0, whole, timed)
    return table


def module_table(report: Content, depth: int) -> Table:
    """The modules down to a depth, each with its sums; deeper ones are counted in the one around them."""
    table = _table(report, ("module", "operators"))
    table.add_column("tensors", justify="right")
    timed = _numbers(table, report)
    table.add_column("times smaller", justify="right")
    for part, level in _walk(tree_of(report.rows), 0, depth):
        rows = list(part.all_rows())
        before, after = part.original_bytes, part.stored_bytes
        table.add_row(
            Text("  " * level + part.name),
            Text(part.operators()),
            str(len(rows)),
            *_sums(part, report.original_bytes, timed),
            f"{before / after:.1f}" if after else "",
            style="" if level else "bold",
        )
    return table


def _walk(part: Part, level: int, depth: int) -> Iterator[tuple[Part, int]]:
    yield part, level
    if level < depth:
        for inner in part.parts:
            yield from _walk(inner, level + 1, depth)


def _table(report: Content, headings: tuple[str, ...]) -> Table:
    table = Table(title=report.title, caption=report.caption, caption_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _numbers(table: Table, report: Content) -> bool:
    """Adds the columns of numbers. Returns whether there is one of times."""
    timed = any(row.seconds is not None for row in report.rows)
    for heading in ("before", "after", "share", *(("time",) if timed else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    return timed


def _add_part(table: Table, part: Part, level: int, whole: int, timed: bool) -> None:
    label = Text("  " * level + part.name)  # a name may have brackets, which a string takes for markup
    alone = part.rows if len(part.rows) == 1 and not part.parts else []
    if alone:
        table.add_row(label, *_cells(alone[0], whole, timed))
    else:
        table.add_row(label, "", "", "", "", *_sums(part, whole, timed), "", style="bold" if part.parts else "")
        for row in part.rows:
            table.add_row("", *_cells(row, whole, timed))
    for inner in part.parts:
        _add_part(table, inner, level + 1, whole, timed)


def _sums(part: Part, whole: int, timed: bool) -> list[str]:
    cells = [format_bytes(part.original_bytes), format_bytes(part.stored_bytes)]
    cells.append(format_share(part.original_bytes, whole))
    return [*cells, "" if part.seconds is None else format_seconds(part.seconds)] if timed else cells


def _cells(row: Row, whole: int, timed: bool) -> list[str]:
    return [
        f"{row.operator or 'unknown'} {row.role}".strip(),
        format_shape(row.shape),
        str(row.dtype).removeprefix("torch."),
        short_codec(row.codec),
        format_bytes(row.original_bytes) if row.original_bytes else "shared",
        format_stored(row.codec, row.stored_bytes),
        format_share(row.original_bytes, whole),
        *(("" if row.seconds is None else format_seconds(row.seconds),) if timed else ()),
        row.why,
    ]
