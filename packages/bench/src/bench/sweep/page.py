"""The same as a page of the documentation, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from bench.errors import BenchError
from bench.results.files import write_text
from bench.results.machine import Machine
from bench.results.record import Record
from bench.sweep.notes import eased, notes
from bench.sweep.report import TITLE, of, summary
from bench.sweep.results import Swept
from bench.units import MIB


def write(record: Record, path: Path) -> None:
    """Writes the page.

    Raises:
        BenchError: the file cannot be written.
    """
    try:
        write_text(path, page(record))
    except OSError as error:
        raise BenchError(f"the page cannot be written to {path} ({error.strerror}); name another file") from error


def page(record: Record) -> str:
    """The page's text."""
    return "\n".join(_lines(record)) + "\n"


def _lines(record: Record) -> Iterator[str]:
    yield from (f"# {TITLE}", "", *(f"    {command}" for command in record.machine.commands), "")
    yield f"{_where(record.machine)}; {record.seconds / 60:.1f} minutes. `nox -s bench_sweep` runs it again."
    yield from ("", *(f"- {line}." for line in summary(record)), "")
    for note in notes(record):
        yield from (note, "")
    for ecosystem in record.values(Swept, "ecosystem"):
        yield from (f"## {ecosystem}", "")
        yield (
            f"| family | name | batch | parameters, millions | saved, MiB | stored, MiB | times smaller | error | "
            f"with {eased(record)} |"
        )
        yield "|---|---|---|---|---|---|---|---|---|"
        for _, entries in groupby(of(record, ecosystem), lambda entry: entry.family):
            for place, entry in enumerate(entries):
                yield _row(entry, "" if place else entry.family)
        yield ""


def _row(entry: Swept, family: str) -> str:
    if entry.failure:
        return f"| {family} | {entry.name} | | | | | | not measured | |"
    cells = (
        family,
        entry.name,
        entry.what,
        f"{entry.parameters / 1e6:.2f}",
        f"{entry.original_bytes / MIB:.2f}",
        f"{entry.stored_bytes / MIB:.2f}",
        f"{entry.ratio:.1f}",
        f"{entry.error:.3f}" if entry.passed else f"**{entry.error:.3f}**, did not pass",
        f"{entry.eased_error:.3f}, {entry.eased_ratio:.1f}" if entry.eased_errors else "",
    )
    return f"| {' | '.join(cells)} |"


def _where(machine: Machine) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in machine.versions.items())
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    commit = f"commit {machine.commit[:10] or 'unknown'}{' with changes' if machine.dirty else ''}"
    return f"{machine.processor}, {threads}, {machine.system}; {versions}; {commit}; {machine.date}"
