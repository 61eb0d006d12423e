"""The results so far: in the file that they are written to, from the first entry on, so that a run can go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import taken_up
from bench.checkpoint.results import CheckpointResults, Entry, Peak, Planned, StepTimes


class Record(taken_up.Record[CheckpointResults]):
    """Adds entries to results, and writes them after each.

    Args:
        results: of this run, without entries.
        file: where they are written; ``None``: nowhere.

    Raises:
        BenchError: the file is there, and holds something else.
    """

    def __init__(self, results: CheckpointResults, file: Path | None) -> None:
        named = "machine, device, seed, memory limit, number of threads, order of channels or version of torch"
        super().__init__(results, file, _settings, named)

    def add(self, entry: Entry) -> None:
        """Adds an entry, in the place of an older one of the same."""
        entry = replace(entry, commit=self.commit)
        name = _LISTS[type(entry)]
        others = [one for one in getattr(self.results, name) if _identity(one) != _identity(entry)]
        self.update(**{name: [*others, entry]})

    def has(self, entry: Entry) -> bool:
        """Whether there is one of the same that did not fail."""
        entries: list[Entry] = getattr(self.results, _LISTS[type(entry)])
        return any(_identity(one) == _identity(entry) and not one.failure for one in entries)


_LISTS = {Planned: "plans", Peak: "peaks", StepTimes: "times"}


def _identity(entry: Entry) -> tuple[object, ...]:
    return entry.model, entry.batch, entry.size, getattr(entry, "way", None)


def _settings(results: CheckpointResults) -> tuple[object, ...]:
    machine = results.machine
    return (
        machine.processor,
        machine.threads,
        machine.versions["torch"],
        results.device,
        results.memory_limit,
        results.seed,
        results.channels_last,
    )
