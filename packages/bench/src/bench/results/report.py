"""``Report``: what is printed and drawn of one kind of record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.text import Text

from bench.errors import BenchError
from bench.results.charts import STYLE, require_drawable, write
from bench.results.entry import Entry
from bench.results.record import Record
from bench.results.tables import header

Lines = Callable[[Record], Iterable[str]]


@dataclass(frozen=True)
class Report:
    """What is printed of a record.

    Attributes:
        title: in its header.
        tables: and what else is printed below the header.
        notes: that stand below the tables.
        targets: what was asked of the numbers, in words; none where nothing was.
        head: the header, where it has more than others.
        draw: makes the chart, or raises ``BenchError`` where there is nothing to draw; a text says why there is none.
    """

    title: str
    tables: Callable[[Record], Iterable[RenderableType]]
    notes: Lines = lambda record: ()
    targets: Lines = lambda record: ()
    head: Callable[[Record], RenderableType] | None = None
    draw: Callable[[Record], Figure] | str = "there is no chart"

    def render(self, record: Record) -> Group:
        """Header, tables and notes."""
        made = self.head or (lambda record: header(self.title, record.machine, record.seconds))
        notes = "\n".join(self._notes(record))
        return Group(made(record), *self.tables(record), *([Text(notes, style="dim")] if notes else []))

    def save_chart(self, record: Record, path: Path) -> None:
        """Draws a record into a file of the type that its name says, such as PNG or SVG.

        Raises:
            BenchError: there is nothing to draw, the type is unknown, or the file cannot be written.
        """
        if isinstance(self.draw, str):
            raise BenchError(f"{self.draw}; leave --chart out")
        require_drawable(path)
        with mpl.rc_context(STYLE):
            write(self.draw(record), path)

    def _notes(self, record: Record) -> Iterator[str]:
        yield from (f"Left out: {reason}." for reason in record.skipped)
        yield from self.notes(record)
        if targets := "; ".join(self.targets(record)):
            yield f"✓ reached, ✗ not: {targets}."


def notes_of_missing(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield why metrics were not measured, each reason once."""
    yield from sorted({f"Not measured: {one.not_measured}." for one in entries if one.not_measured})
