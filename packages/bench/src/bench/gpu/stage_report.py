"""What ``python -m bench show`` prints of a stage's record; the stage itself takes ``report.py`` alone."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from bench.gpu import report
from bench.gpu.results import StageResults
from bench.results.record import Record
from bench.results.report import Report


def head(record: Record) -> Text:
    """The header."""
    return report.head(record.of(StageResults)[0], record.machine)


def parts(record: Record) -> Iterator[RenderableType]:
    """Rows, what failed in full, and what is settled."""
    for stage in record.of(StageResults):
        yield from report.parts(stage)


REPORT = Report("GPU", parts, head=head, draw="a stage has no chart; the tables say it all")
