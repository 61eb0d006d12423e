"""``Run``: the one loop of all benchmarks. It measures what the file lacks, and writes each entry as it is found."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.errors import BenchError, DoesNotApply, MissingLibrary, reason
from bench.results.entry import Entry
from bench.results.machine import PACKAGES, Machine
from bench.results.record import Kind, Record, load, save
from bench.runner.child import TooLong

_SHARE = 4  # of the whole time: the most that one measurement may take of it is the fourth part
_LEAST = 60.0  # seconds that it may take in any case: the libraries' start is among them


@dataclass(frozen=True)
class Deadline:
    """So many seconds from now.

    Attributes:
        seconds: ``None`` for no end.
        start: on the clock of ``time.monotonic``.
    """

    seconds: float | None = None
    start: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        """Seconds until it comes; ``None`` where it never does."""
        return None if self.seconds is None else self.start + self.seconds - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether it has come."""
        return self.left is not None and self.left <= 0

    @property
    def share(self) -> float | None:
        """Seconds that one measurement may take: what hangs shall not take the time of all others."""
        return None if self.seconds is None or self.left is None else min(self.left, max(self.seconds / _SHARE, _LEAST))

    def __str__(self) -> str:
        return "no deadline" if self.seconds is None else f"the deadline of {self.seconds:g} s"


@contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function to call after each of ``total`` steps, with what the step was."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        if total and not bar.console.is_terminal:
            bar.console.print(f"{name}: {total} to do")

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what)
            if not bar.console.is_terminal:
                bar.console.print(f"{what}: done")

        yield advance


Wanted = TypeVar("Wanted", bound=Entry)


class Run:
    """A record that is written after each change of it.

    A file that is there is taken up: what it has is not measured again, but for what failed. Entries say with which
    commit they were made; all else that makes numbers differ must be the same.

    Attributes:
        record: so far.
        commit: of entries that are made now.

    Args:
        kind: of the record.
        machine: this one.
        settings: of this run: all of ``kind.settings``, and what is known of its others.
        file: that is written, and taken up; ``None``: none.
        anew: whether what the file has is left alone, and written over.

    Raises:
        BenchError: the file is there, and holds something else.
    """

    def __init__(
        self, kind: Kind, machine: Machine, settings: dict[str, Any], file: Path | None, anew: bool = False
    ) -> None:
        self.commit = commit_of(machine)
        self._kind, self._file = kind, file
        self.record = Record(kind.name, machine, settings)
        if file is not None and file.exists() and not anew:
            self.record = self._taken_up(load(file, self._own), file)
        self._begun, self._earlier = time.perf_counter(), self.record.seconds

    def has(self, entry: Entry) -> bool:
        """Whether there is an entry of the same coordinates that did not fail."""
        found = self.found(entry)
        return found is not None and not found.failure

    def found(self, entry: Wanted) -> Wanted | None:
        """The entry of the same coordinates; ``None`` where there is none."""
        return next((one for one in self.record.of(type(entry)) if one.place == entry.place), None)

    def add(self, *entries: Entry) -> None:
        """Adds entries, each in the place of an older one of the same coordinates, and writes all."""
        stamped = [replace(entry, commit=self.commit) for entry in entries]
        self.update(entries=self.record.adding(stamped, self._kind.order).entries)

    def skip(self, why: str) -> None:
        """Says that something was left out."""
        self.record = replace(self.record, skipped=[*self.record.skipped, why])

    def set(self, **settings: Any) -> None:
        """Says settings that are known only now; those that have names themselves are added to what is known of them.

        Raises:
            BenchError: the file has others.
        """
        self._kind.require_settings(settings)
        known, differing = self.record.settings, []
        for name, value in settings.items():
            words, before = self._kind.others.get(name, name), known.get(name, value)
            if isinstance(value, dict):
                if other := [one for one in value if before.get(one, value[one]) != value[one]]:
                    differing.append(f"{words} ({', '.join(other)})")
                settings[name] = {**before, **value}
            elif before != value:
                differing.append(f"{words} ({before}, not {value})")
        self._refuse(self._file, differing)
        self.record = replace(self.record, settings={**known, **settings})

    def present(self, names: Iterable[str], make: Callable[[str], object], what: str = "") -> list[str]:
        """Those of which ``make`` does not say that a library is missing; the others are left out, by name.

        Args:
            names: of subjects.
            make: makes one, or asks for its library.
            what: is measured of them, in words such as ``"compression of "``.
        """
        found = []
        for name in names:
            try:
                make(name)
                found.append(name)
            except MissingLibrary as error:
                self.skip(f"{what}{name}: {error}")
        return found

    def update(self, **changes: Any) -> None:
        """Changes the record, and writes it."""
        seconds = self._earlier + time.perf_counter() - self._begun
        self.record = replace(self.record, **{"seconds": seconds, **changes})
        if self._file is not None:
            save(self.record, self._file)

    def measure(
        self,
        wanted: Sequence[Wanted],
        measured: Callable[[Wanted], Entry | Iterable[Entry]],
        *,
        name: str = "",
        lacks: Callable[[Wanted], bool] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Measures what is left, one after another, with a progress bar on stderr.

        Args:
            wanted: without numbers. What is there of them already is given to ``measured`` as it is.
            measured: the same with its numbers; it may be several. What it raises is kept as the entry's failure.
            name: of the bar.
            lacks: whether an entry that is there, and did not fail, is to be measured further; ``None``: none is.
            deadline: after which none begins any more.
        """

        def one(some: Sequence[Wanted]) -> Iterable[Entry]:
            found = measured(some[0])
            return [found] if isinstance(found, Entry) else found

        units = [[each] for each in wanted]
        self.measure_together(units, one, name=name, lacks=lacks, deadline=deadline)

    def measure_together(
        self,
        groups: Sequence[Sequence[Wanted]],
        measured: Callable[[list[Wanted]], Iterable[Entry]],
        *,
        name: str = "",
        lacks: Callable[[Wanted], bool] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """The same of entries that are measured together, such as ways that take turns.

        Args:
            groups: of entries without numbers.
            measured: is given those of a group that are left.
            name, lacks, deadline: as of ``measure``.
        """
        units = [[one for one in group if self._lacks(one, lacks)] for group in groups]
        left = [unit for unit in units if unit]
        with progress(name or self._kind.name, len(left)) as advance:
            self._measure(left, measured, deadline or Deadline(), advance)

    def _measure(
        self,
        left: Sequence[Sequence[Wanted]],
        measured: Callable[[list[Wanted]], Iterable[Entry]],
        deadline: Deadline,
        advance: Callable[[str], None],
    ) -> None:
        for place, unit in enumerate(left):
            found = None if deadline.over else self._outcome([self._start(one) for one in unit], measured, deadline)
            if found is None:
                self.skip(f"{deadline} came before {_unreached([one for unit in left[place:] for one in unit])}")
                return
            self.add(*found)
            advance(unit[0].label)

    def _start(self, blank: Wanted) -> Wanted:
        """What is measured further: what is there, but for what failed."""
        known = self.found(blank)
        return blank if known is None or known.failure else known

    def _outcome(
        self, unit: list[Wanted], measured: Callable[[list[Wanted]], Iterable[Entry]], deadline: Deadline
    ) -> list[Entry] | None:
        """The entries with their numbers, or with why there are none; ``None`` if the deadline came meanwhile."""
        try:
            return list(measured(unit))
        except TooLong as error:
            return None if deadline.over else [replace(one, failure=str(error)) for one in unit]
        except MissingLibrary:
            raise  # which is said of all that is left
        except DoesNotApply as error:
            return [replace(one, does_not_apply=str(error)) for one in unit]
        except BenchError as error:
            return [replace(one, failure=str(error)) for one in unit]
        except Exception as error:  # whatever one fails with, others are to be measured
            return [replace(one, failure=reason(error)) for one in unit]

    def _lacks(self, entry: Wanted, lacks: Callable[[Wanted], bool] | None) -> bool:
        known = self.found(entry)
        if known is None or known.failure:
            return True
        return lacks is not None and not known.does_not_apply and lacks(known)

    def _own(self, name: str) -> Kind:
        if name != self._kind.name:
            raise ValueError(f"it is of {name}, not of {self._kind.name}")
        return self._kind

    def _taken_up(self, found: Record, file: Path) -> Record:
        machine, kind = self.record.machine, self._kind
        differing = [words for name, words in kind.settings.items() if not self._same(found, name)]
        for words, one, other in (
            ("machine", machine.processor, found.machine.processor),
            ("number of threads", machine.threads, found.machine.threads),
            *(
                (f"version of {package}", version, found.machine.versions.get(package, version))
                for package, version in machine.versions.items()
            ),
        ):
            differing += [words] if one != other else []
        self._refuse(file, differing)
        earlier = [one for one in dict.fromkeys(found.machine.commands) if one != machine.command]
        settings = {**found.settings, **self.record.settings}
        return replace(found, machine=replace(machine, earlier=earlier), settings=settings, skipped=[])

    def _same(self, found: Record, name: str) -> bool:
        return bool(found.settings.get(name) == self.record.settings.get(name))

    def _refuse(self, file: Path | None, differing: Sequence[str]) -> None:
        if differing:
            raise BenchError(f"{file} holds results of another {', '.join(differing)}; name another file, or delete it")


def begun(kind: Kind, asked: argparse.Namespace, **settings: Any) -> Run:
    """A run of a command.

    Args:
        kind: of its records.
        asked: the command's options, of which those with the names of settings are such.
        **settings: those that are no options.

    Raises:
        BenchError: the file is there, and holds something else.
    """
    device = torch.device(getattr(asked, "device", "cpu"))
    machine = Machine.here(device, asked.threads, (*PACKAGES, *kind.packages))
    known = {name: settings[name] if name in settings else getattr(asked, name) for name in kind.settings}
    return Run(kind, machine, known, asked.json, getattr(asked, "anew", False))


def _unreached(left: Sequence[Entry]) -> str:
    """What was not measured: by way, if there are ways, the subjects."""
    subjects: dict[str, list[str]] = {}
    for entry in left:
        way = getattr(entry, "way", "")
        subjects.setdefault(way, []).append(str(entry.place[0]) if way else entry.label)
    return "; ".join(f"{way} of {', '.join(names)}" if way else ", ".join(names) for way, names in subjects.items())


def commit_of(machine: Machine) -> str:
    """The commit that an entry says it was made with; with a plus where files differed from it."""
    return f"{machine.commit[:10]}{'+' if machine.dirty else ''}"
