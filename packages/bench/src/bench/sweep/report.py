"""Results of ``python -m bench sweep`` as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.layout import columns, header
from bench.marks import marked
from bench.sweep.notes import eased, notes
from bench.sweep.results import SweepResults, Swept
from bench.units import MIB

STEP = "Step: the quickest compressed one over the quickest plain one, of models as small as these are."
TITLE = "Sweep: a compressed training step of many models and layers"


def render(results: SweepResults) -> RenderableType:
    """Header, a table for each ecosystem, how many passed, and notes."""
    ecosystems = dict.fromkeys(entry.ecosystem for entry in results.subjects)
    return Group(
        header(TITLE, results.machine, results.seconds),
        *(_table(results, ecosystem) for ecosystem in ecosystems),
        Text("\n".join(summary(results)), style="bold"),
        Text("\n".join((*notes(results), STEP)), style="dim"),
    )


def no_chart(results: SweepResults, path: Path) -> None:
    """Raises ``BenchError``: the tables say it all."""
    raise BenchError("a sweep has no chart; leave --chart out, the tables say it all")


def of(results: SweepResults, ecosystem: str) -> list[Swept]:
    """The subjects of an ecosystem."""
    return [entry for entry in results.subjects if entry.ecosystem == ecosystem]


def summary(results: SweepResults) -> Iterator[str]:
    """A line for each ecosystem: how many passed, and the worst of them."""
    for ecosystem in dict.fromkeys(entry.ecosystem for entry in results.subjects):
        entries = of(results, ecosystem)
        measured = [entry for entry in entries if not entry.failure]
        exact = sum(entry.passed and entry.accurate for entry in entries)
        line = f"{ecosystem}: {exact} of {len(entries)} passed at {results.level}"
        if others := sum(entry.passed and not entry.accurate for entry in entries):
            line += f", {others} more with {eased(results)}"
        if measured:
            worst = max(measured, key=lambda entry: entry.error)
            least = min(measured, key=lambda entry: entry.ratio)
            line += f"; largest error {worst.error:.3f}, {worst.name}; smallest ratio {least.ratio:.1f}, {least.name}"
        yield line


def _table(results: SweepResults, ecosystem: str) -> Table:
    table = columns(
        ecosystem,
        "family",
        "batch",
        "parameters\nmillions",
        "saved\nMiB",
        "stored\nMiB",
        "times\nsmaller",
        "error",
        f"with\n{eased(results)}",
        "step",
        "passed",
        labels=3,
    )
    for entry in of(results, ecosystem):
        passed = marked("", entry.passed)
        if entry.failure:
            table.add_row(entry.name, entry.family, *[""] * 8, passed)
            continue
        table.add_row(
            entry.name,
            entry.family,
            entry.what,
            f"{entry.parameters / 1e6:.2f}",
            f"{entry.original_bytes / MIB:.2f}",
            f"{entry.stored_bytes / MIB:.2f}",
            marked(f"{entry.ratio:.1f}", True if entry.smaller else None),
            marked(f"{entry.error:.3f}", entry.accurate),
            f"{entry.eased_error:.3f}, {entry.eased_ratio:.1f}" if entry.eased_errors else "",
            f"{entry.seconds / entry.plain_seconds:.2f}",
            passed,
        )
    return table
