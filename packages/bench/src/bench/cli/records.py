"""JSON files in packages/bench/results: what ``--json`` writes, and ``show`` and ``report`` read."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group

from bench.cli.suites import RECORDS, kind_of
from bench.results import files
from bench.results.files import save
from bench.results.record import Record

__all__ = ["draw", "load", "save", "shown"]


def load(path: Path) -> Record:
    """Reads what ``save`` wrote.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    return files.load(path, kind_of)


def shown(record: Record) -> Group:
    """What is printed of a record: header, tables and notes."""
    _, report = RECORDS[record.kind]
    return report.render(record)


def draw(record: Record, picture: Path) -> None:
    """Draws the chart of a record into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: it cannot be written, or there is nothing to draw.
    """
    _, report = RECORDS[record.kind]
    report.save_chart(record, picture)
