"""The tables of the sweep."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.recorded_tests.sweep import Swept
from bench.recorded_tests.sweep_notes import eased, notes
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import marked, mib, table

STEP = "Step: the quickest compressed one over the quickest plain one, of models as small as these are."
TITLE = "Sweep: a compressed training step of many models and layers"


def parts(record: Record) -> Iterator[RenderableType]:
    """A table for each ecosystem, and how many passed."""
    yield from (_table(record, ecosystem) for ecosystem in record.values(Swept, "ecosystem"))
    yield Text("\n".join(summary(record)), style="bold")


def summary(record: Record) -> Iterator[str]:
    """A line for each ecosystem: how many passed, and the worst of them."""
    for ecosystem in record.values(Swept, "ecosystem"):
        entries = record.of(Swept, ecosystem=ecosystem)
        measured = [entry for entry in entries if not entry.failure]
        exact = sum(entry.passed and entry.accurate for entry in entries)
        line = f"{ecosystem}: {exact} of {len(entries)} passed at {record.settings['level']}"
        if others := sum(entry.passed and not entry.accurate for entry in entries):
            line += f", {others} more with {eased(record)}"
        if measured:
            worst = max(measured, key=lambda entry: entry.error)
            least = min(measured, key=lambda entry: entry.ratio)
            line += f"; largest error {worst.error:.3f}, {worst.name}; smallest ratio {least.ratio:.1f}, {least.name}"
        yield line


def _table(record: Record, ecosystem: str) -> Table:
    return table(
        record.of(Swept, ecosystem=ecosystem),
        (ecosystem, lambda entry: entry.name),
        ("family", lambda entry: entry.family),
        ("batch", lambda entry: entry.what),
        ("parameters\nmillions", lambda entry: f"{entry.parameters / 1e6:.2f}"),
        ("saved\nMiB", lambda entry: mib(entry.original_bytes, 2)),
        ("stored\nMiB", lambda entry: mib(entry.stored_bytes, 2)),
        ("times\nsmaller", lambda entry: marked(f"{entry.ratio:.1f}", True if entry.smaller else None)),
        ("error", lambda entry: marked(f"{entry.error:.3f}", entry.accurate)),
        (f"with\n{eased(record)}", _eased),
        ("step", lambda entry: f"{entry.seconds / entry.plain_seconds:.2f}"),
        ("passed", lambda entry: marked("", entry.passed)),
        labels=3,
        instead=lambda entry: [*[""] * 7, marked("", entry.passed)] if entry.failure else None,
    )


def _eased(entry: Swept) -> str:
    return f"{entry.eased_error:.3f}, {entry.eased_ratio:.1f}" if entry.eased_errors else ""


def _notes(record: Record) -> Iterator[str]:
    yield from notes(record)
    yield STEP


REPORT = Report(TITLE, parts, _notes, draw="a sweep has no chart; the tables say it all")
