"""A report as a rich table, whose cells fit their columns: names are shortened in the middle, lists at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from integrations.report.content import Content
from integrations.report.row import Row
from integrations.report.tree import Part, make_tree
from integrations.report.words import (
    format_bytes,
    format_seconds,
    format_shape,
    format_share,
    format_stored,
    short_codec,
    shortened,
)

DEPTH = 2  # of a summary
LEAST = 0.001  # the share of the parts that a summary lists
ITSELF = "(itself)"
"""The name of a row for tensors that a module saves outside of its submodules, such as those of a loss."""


def full_table(report: Content) -> Table:
    """Every tensor that autograd alone keeps, below its module; each module with its sums."""
    table = _table(report, report.caption)
    table.add_column("module, operator, shape, dtype")
    table.add_column("codec: why")
    timed = _numbers(table, report)
    if report.rows:
        _add_part(table, make_tree(report.rows), 0, report.original_bytes, timed)
    return table


def module_table(report: Content, depth: int) -> Table:
    """The modules down to a depth, each with its sums; deeper ones are counted in the one around them."""
    return _of_modules(report, depth, 0.0, "")


def summary(report: Content) -> Table:
    """Return a table of the largest modules, with a line on how to see the others."""
    if not report.rows:
        return _of_modules(report, 0, 0.0, "")
    return _of_modules(report, DEPTH, LEAST, "report.table() lists every tensor; report.html(path) has all of it.")


def _of_modules(report: Content, depth: int, least: float, more: str) -> Table:
    root = make_tree(report.rows)
    shown = list(_shown(root, 0, depth, ""))
    listed = [one for one in shown if not one[2] or _share(one[0], root) >= least]
    if len(listed) < len(shown):
        count = len(shown) - len(listed)
        more = f"Left out: {count} part{'' if count == 1 else 's'} below {least:.1%}. {more}"
    table = _table(report, "\n".join(filter(None, (report.caption, more))))
    table.add_column("module")
    table.add_column("operators")
    timed = _numbers(table, report)
    table.add_column("smaller", justify="right", no_wrap=True)
    for part, name, level in listed:
        table.add_row(
            Name(name, level),
            Names(part.all_operators()),
            *_sums(part, report.original_bytes, timed),
            part.smaller,
            style="" if level else "bold",
        )
    return table


def _shown(part: Part, level: int, depth: int, within: str) -> Iterator[tuple[Part, str, int]]:
    """Yield the modules down to a depth, with their names and levels. Tensors that a module saves itself are a part of
    their own. A wrapper of one module is no level: its name is a prefix of the names of that module's parts."""
    yield part, within + part.name, level
    if level == depth or not part.parts:
        return
    within = ""
    while True:
        if any(row.original_bytes or row.stored_bytes for row in part.rows):
            yield Part(part.path, part.name, part.rows), f"{within}{ITSELF}", level + 1
        inner = [one for one in part.parts if one.original_bytes or one.stored_bytes]
        if len(inner) != 1 or not inner[0].parts:
            break
        part, within = inner[0], f"{within}{inner[0].name}."
    for one in inner:
        yield from _shown(one, level + 1, depth, within)


def _share(part: Part, whole: Part) -> float:
    """Return the larger of a part's shares of the bytes before and after."""
    pairs = ((part.original_bytes, whole.original_bytes), (part.stored_bytes, whole.stored_bytes))
    return max((one / all_of_it for one, all_of_it in pairs if all_of_it), default=0.0)


def _table(report: Content, caption: str) -> Table:
    return Table(
        title=report.title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        min_width=len(report.title),  # otherwise the title wraps above a narrow table
    )


def _numbers(table: Table, report: Content) -> bool:
    """Adds the columns of numbers. Returns whether there is one of times."""
    timed = any(row.seconds is not None for row in report.rows)
    for heading in ("before", "after", "share", *(("time",) if timed else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    return timed


def _add_part(table: Table, part: Part, level: int, whole: int, timed: bool) -> None:
    table.add_row(Name(part.name, level), "", *_sums(part, whole, timed), style="bold" if part.parts else "")
    for row in part.rows:
        table.add_row(*_cells(row, level + 1, whole, timed))
    for inner in part.parts:
        _add_part(table, inner, level + 1, whole, timed)


def _sums(part: Part, whole: int, timed: bool) -> list[str]:
    cells = [format_bytes(part.original_bytes), format_bytes(part.stored_bytes)]
    cells.append(format_share(part.original_bytes, whole))
    return [*cells, "" if part.seconds is None else format_seconds(part.seconds)] if timed else cells


def _cells(row: Row, level: int, whole: int, timed: bool) -> list[Words | str]:
    operator = f"{row.operator or 'unknown'} {row.role}".strip()
    codec = short_codec(row.codec)
    return [
        Words(f"{operator} {format_shape(row.shape)} {str(row.dtype).removeprefix('torch.')}", level),
        Words(f"{codec}: {row.why}" if row.why else codec),
        format_bytes(row.original_bytes) if row.original_bytes else "shared",
        format_stored(row.codec, row.stored_bytes),
        format_share(row.original_bytes, whole),
        *(("" if row.seconds is None else format_seconds(row.seconds),) if timed else ()),
    ]


_LEAST = 12  # the columns of the narrowest name


class Name:
    """A module's path in one line.

    Args:
        name: the path.
        level: how deep it is in the tree.
    """

    def __init__(self, name: str, level: int = 0) -> None:
        self.name, self._indent = name, "  " * level

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        length = len(self._indent) + len(self.name)
        return Measurement(min(length, len(self._indent) + _LEAST), length)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A Text, because rich would read brackets in a string as markup.
        yield Text(self._indent + shortened(self.name, options.max_width - len(self._indent)), no_wrap=True)


class Names:
    """Names in one line: as many as fit, and the number of the others."""

    def __init__(self, names: Sequence[str], most: int = 3) -> None:
        self.names, self._most = names, most

    def _with(self, count: int) -> str:
        more = len(self.names) - count
        return ", ".join(self.names[:count]) + (f" +{more}" if more > 0 else "")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        length = len(self._with(self._most))
        return Measurement(min(length, _LEAST), length)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        several = (self._with(count) for count in range(self._most, 0, -1))
        found = next((text for text in several if len(text) <= options.max_width), None)
        yield Text(found or shortened(self._with(1), options.max_width), no_wrap=True)


class Words:
    """A text that wraps between words. A word that is longer than a line is shortened in the middle.

    Args:
        text: the text.
        level: how deep it is in the tree.
    """

    def __init__(self, text: str, level: int = 0) -> None:
        self._words, self._indent = text.split(), 2 * level

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, self._words), default=0)
        length = self._indent + len(" ".join(self._words))
        return Measurement(min(self._indent + min(longest, 2 * _LEAST), length), length)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self._indent, 1)
        text = Text(" ".join(shortened(word, width) for word in self._words))
        yield Padding(text, (0, 0, 0, self._indent)) if self._indent else text
