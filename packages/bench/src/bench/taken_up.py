"""Results that are written from the first entry on, and taken up from their file, so that a run can go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from bench import records
from bench.errors import BenchError
from bench.machine import Machine

Results = TypeVar("Results", bound=records.AnyResults)


class Record(Generic[Results]):
    """Results that are written after each change of them.

    A file that is there is taken up: what it has is not measured again, but for what failed. Entries say with which
    commit they were made; all else that makes numbers differ must be the same.

    Attributes:
        results: so far.
        commit: of entries that are made now.

    Args:
        results, file, settings, named: see ``taken_up``.

    Raises:
        BenchError: the file is there, and holds something else.
    """

    def __init__(self, results: Results, file: Path | None, settings: Callable[[Any], object], named: str) -> None:
        self.results = taken_up(results, file, settings, named)
        self.commit = commit_of(results.machine)
        self._file = file

    def update(self, **changes: Any) -> None:
        """Changes the results, and writes them."""
        self.results = replace(self.results, **changes)
        if self._file is not None:
            records.save(self.results, self._file)


def taken_up(results: Results, file: Path | None, settings: Callable[[Any], object], named: str) -> Results:
    """What a file has of a run with the same settings, by this machine and commit from now on; the results themselves
    where there is no file.

    Args:
        results: of this run, without entries.
        file: that they are written to; ``None``: nowhere.
        settings: of results: all that makes numbers differ, but for the commit, which entries say.
        named: the settings in words.

    Raises:
        BenchError: the file is there, and holds something else.
    """
    if file is None or not file.exists():
        return results
    found = records.load(file)
    if not isinstance(found, type(results)) or settings(found) != settings(results):
        raise BenchError(f"{file} holds other results, or those of another {named}; name another file, or delete it")
    return replace(found, machine=replace(results.machine, earlier=_others(found.machine, results.machine.command)))


def _others(machine: Machine, command: str) -> list[str]:
    return [one for one in dict.fromkeys(machine.commands) if one != command]


def commit_of(machine: Machine) -> str:
    """The commit that an entry says it was made with; with a plus where files differed from it."""
    return f"{machine.commit[:10]}{'+' if machine.dirty else ''}"
