"""The results so far: in the file that they are written to, from the first subject on, so that a run can go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import taken_up
from bench.sweep.results import SweepResults, Swept
from bench.sweep.subjects import SUBJECTS


class Record(taken_up.Record[SweepResults]):
    """Adds subjects to results, and writes them after each.

    Args:
        results: of this run, without subjects.
        file: where they are written; ``None``: nowhere.

    Raises:
        BenchError: the file is there, and holds something else.
    """

    def __init__(self, results: SweepResults, file: Path | None) -> None:
        named = "machine, level, seed, number of steps or threads, or version of a library"
        super().__init__(results, file, _settings, named)

    def add(self, entry: Swept) -> None:
        """Adds a subject, in the place of an older entry of the same."""
        others = [one for one in self.results.subjects if _identity(one) != _identity(entry)]
        entries = [*others, replace(entry, commit=self.commit)]
        self.update(subjects=sorted(entries, key=lambda one: _PLACES.get(_identity(one), len(_PLACES))))

    def has(self, ecosystem: str, name: str) -> bool:
        """Whether there is an entry that did not fail."""
        return any(_identity(one) == (ecosystem, name) and not one.failure for one in self.results.subjects)


_PLACES = {(subject.ecosystem, subject.name): place for place, subject in enumerate(SUBJECTS)}


def _identity(entry: Swept) -> tuple[str, str]:
    return entry.ecosystem, entry.name


def _settings(results: SweepResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.level, results.steps, results.seed
