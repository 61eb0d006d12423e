"""The results so far: in the file that they are written to, from the first subject on, so that a run can go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import records
from bench.sweep.results import SweepResults, Swept
from bench.sweep.subjects import SUBJECTS
from bench.taken_up import commit_of, taken_up


class Record:
    """Adds subjects to results, and writes them after each.

    A file that is there is taken up: what it has is not measured again, but for what failed. Entries say with which
    commit they were made; all else that makes numbers differ must be the same.

    Attributes:
        results: so far.

    Args:
        results: of this run, without subjects.
        file: where they are written; ``None``: nowhere.

    Raises:
        BenchError: the file is there, and holds something else.
    """

    def __init__(self, results: SweepResults, file: Path | None) -> None:
        named = "machine, level, seed, number of steps or threads, or version of a library"
        self.results = taken_up(results, file, _settings, named)
        self._file = file
        self._commit = commit_of(results.machine)

    def add(self, entry: Swept) -> None:
        """Adds a subject, in the place of an older entry of the same."""
        others = [one for one in self.results.subjects if _identity(one) != _identity(entry)]
        entries = [*others, replace(entry, commit=self._commit)]
        self.update(subjects=sorted(entries, key=lambda one: _PLACES.get(_identity(one), len(_PLACES))))

    def has(self, ecosystem: str, name: str) -> bool:
        """Whether there is an entry that did not fail."""
        return any(_identity(one) == (ecosystem, name) and not one.failure for one in self.results.subjects)

    def update(self, **changes: object) -> None:
        """Changes the results, and writes them."""
        self.results = replace(self.results, **changes)  # type: ignore[arg-type]
        if self._file is not None:
            records.save(self.results, self._file)


_PLACES = {(subject.ecosystem, subject.name): place for place, subject in enumerate(SUBJECTS)}


def _identity(entry: Swept) -> tuple[str, str]:
    return entry.ecosystem, entry.name


def _settings(results: SweepResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.level, results.steps, results.seed
