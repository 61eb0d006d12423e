"""``Report``: what is printed and drawn of one kind of record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bench.errors import BenchError
from bench.results.charts import Panel, require_drawable, save_panels
from bench.results.record import Record
from bench.results.tables import commands, labelled

Lines = Callable[[Record], Iterable[str]]


@dataclass(frozen=True)
class Report:
    """What is printed of a record. Settings ``data`` and ``recipe``, and why entries lack numbers, are printed of each.

    Attributes:
        title: in its header.
        tables: and what else is printed below the header.
        notes: that stand below the tables.
        head: more lines of the header, by name.
        panels: of the chart; none where there is nothing to draw.
        caption: below the chart.
    """

    title: str
    tables: Callable[[Record], Iterable[RenderableType]]
    notes: Lines = lambda record: ()
    head: Callable[[Record], Mapping[str, str]] = lambda record: {}
    panels: Callable[[Record], Sequence[Panel]] | None = None
    caption: Callable[[Record], str] = lambda record: ""

    def render(self, record: Record) -> Group:
        """Header, tables and notes."""
        command = f"{commands(record.machine)}; {record.seconds / 60:.1f} minutes"
        head = labelled(self.title, **self.head(record), machine=str(record.machine), command=command)
        notes = "\n".join(self._notes(record))
        return Group(head, *self.tables(record), *([Text(notes, style="dim")] if notes else []))

    def save_chart(self, record: Record, path: Path) -> None:
        """Draws a record into a file of the type that its name says, such as PNG or SVG.

        Raises:
            BenchError: there is nothing to draw, the type is unknown, or the file cannot be written.
        """
        if self.panels is None:
            raise BenchError("there is no chart for these results; leave --chart out")
        require_drawable(path)
        panels = self.panels(record)
        if not panels:
            raise BenchError("there is nothing to draw: no part of the record with numbers has a chart")
        save_panels(panels, self.caption(record), record.machine, path)

    def _notes(self, record: Record) -> Iterator[str]:
        yield from (f"Left out: {reason}." for reason in record.skipped)
        if data := record.settings.get("data"):
            yield f"Data: {data}."
        if recipe := record.settings.get("recipe"):
            yield f"Recipe: {', '.join(f'{name} {_value(value)}' for name, value in recipe.items())}."
        yield from self.notes(record)
        yield from _reasons(record)
        if len(commits := sorted({entry.commit for entry in record.entries if entry.commit})) > 1:
            yield f"Measured with commits {', '.join(commits)}; the file says which number is of which."


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _reasons(record: Record) -> Iterator[str]:
    """Yield why entries lack numbers, each reason once with all entries that it is of."""
    found: dict[str, dict[str, None]] = {}
    for entry in record.entries:
        if entry.reason:
            reason = f"does not apply: {entry.reason}" if entry.does_not_apply else entry.reason
            found.setdefault(reason, {})[entry.label] = None
    for reason, labels in found.items():
        everywhere = len(labels) > 1 and len(labels) == len(record.entries)
        yield f"{'All' if everywhere else '; '.join(labels)}: {reason.rstrip('.')}."
