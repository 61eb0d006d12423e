"""A table of a README, made of recorded results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from bench.cli import records
from bench.errors import BenchError
from bench.results.record import Record

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Made:
    """A table, and what it was made of.

    Attributes:
        table: with columns marked "published" and "measured", and the command that makes each row.
        results: that have the measured figures.
    """

    table: Table
    results: list[Record] = field(default_factory=list)


def recorded(folder: Path, file: str, kind: str) -> Record | None:
    """The record of a file; ``None`` where it is not there, so that its rows say that they are not measured.

    Raises:
        BenchError: the file holds something else.
    """
    if not (folder / file).exists():
        return None
    found = records.load(folder / file)
    if not isinstance(found, Record) or found.kind != kind:
        raise BenchError(f"{folder / file} must hold results of {kind}; name another folder")
    return found
