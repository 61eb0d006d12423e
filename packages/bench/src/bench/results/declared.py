"""What files have, of which the documentation is made: each kind of record, its settings, entries and metrics."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from bench.results.entry import COORDINATE
from bench.results.record import Kind
from bench.results.tables import table

Row = tuple[str, str, str, str]
"""A part or ``settings``, a name, its unit, and what it is."""


def declared(kind: Kind) -> Table:
    """A row for each setting, coordinate and metric of a kind; names of coordinates have a star."""
    return table(
        _rows(kind),
        ("part", lambda row: row[0]),
        ("name", lambda row: row[1]),
        ("unit", lambda row: row[2]),
        ("what it is", lambda row: row[3]),
        labels=4,
    )


def _rows(kind: Kind) -> Iterator[Row]:
    for name, words in {**kind.settings, **kind.others}.items():
        yield "settings", name, "", words
    for entry in kind.entries:
        for name, role, unit, words in entry.declared():
            yield entry.part, f"{name} *" if role == COORDINATE else name, unit, words
