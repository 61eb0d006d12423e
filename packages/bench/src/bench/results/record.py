"""``Record``: the entries of a run with what is needed to repeat it, and records as JSON files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.errors import BenchError
from bench.results.entry import Entry
from bench.results.machine import Machine
from bench.results.statistics import Difference, paired_difference
from integrations._utils.checked_json import loaded
from integrations._utils.whole_files import write_text

Found = TypeVar("Found", bound=Entry)


@dataclass(frozen=True)
class Record:
    """What a bench found: raw values alone, from which tables and charts are computed.

    Attributes:
        kind: the name of its ``Kind``, by which ``python -m bench show`` knows what to print.
        machine: where and with what.
        settings: by name, all else that makes numbers differ.
        entries: by part, subject, way.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
    """

    kind: str
    machine: Machine
    settings: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def of(self, kind: type[Found], **place: Any) -> list[Found]:
        """The entries of a class, in order.

        Args:
            kind: of entries.
            **place: coordinates that they must have.
        """
        found = (one for one in self.entries if type(one) is kind)
        return [one for one in found if all(getattr(one, name) == value for name, value in place.items())]

    def measured(self, kind: type[Found]) -> list[Found]:
        """Return the entries of a class that did not fail, in order."""
        return [one for one in self.of(kind) if not one.failure]

    def find(self, kind: type[Found], **place: Any) -> Found | None:
        """The first of the same; ``None`` where there is none."""
        return next(iter(self.of(kind, **place)), None)

    def values(self, kind: type[Entry], name: str, **place: Any) -> list[Any]:
        """The different values of a coordinate or metric, in the order in which they come."""
        return list(dict.fromkeys(getattr(one, name) for one in self.of(kind, **place)))

    def adding(self, new: Iterable[Entry], order: Callable[[Entry], Any] | None = None) -> Record:
        """The record with other entries, each in the place of an older one of the same coordinates.

        Args:
            new: those entries.
            order: by which all are sorted then; ``None`` puts new ones last.
        """
        known = {(one.part, *one.place): one for one in self.entries}
        known |= {(one.part, *one.place): one for one in new}
        entries = list(known.values())
        return replace(self, entries=entries if order is None else sorted(entries, key=order))


def paired(entries: Iterable[Found], references: Iterable[Found], value: Callable[[Found], float]) -> Difference | None:
    """The mean difference of a value from that of the reference with the same seed; ``None`` where there are no pairs.

    Args:
        entries: with a coordinate ``seed``.
        references: the same, most often of plain training.
        value: of an entry.
    """
    pairs = match_seeds(entries, references)
    if not pairs:
        return None
    return paired_difference([value(one) for one, _ in pairs], [value(other) for _, other in pairs])


def match_seeds(entries: Iterable[Found], references: Iterable[Found]) -> list[tuple[Found, Found]]:
    """Entries, each with the reference of the same seed."""
    known = {_seed(one): one for one in references}
    return [(one, known[_seed(one)]) for one in entries if _seed(one) in known]


def _seed(entry: Entry) -> Any:
    return getattr(entry, "seed")  # noqa: B009, not every class of entries has one


def order_by(**names: Iterable[Any] | None) -> Callable[[Any], tuple[Any, ...]]:
    """Return what sorts entries by coordinates, the first of them first; entries without these are left as they were.

    Args:
        **names: by coordinate, its values in order, what is not among them last; ``None``: numbers in their own order.
    """
    places = {name: None if some is None else {one: at for at, one in enumerate(some)} for name, some in names.items()}

    def key(entry: Any) -> tuple[Any, ...]:
        if not all(hasattr(entry, name) for name in places):
            return ()
        values = ((getattr(entry, name), known) for name, known in places.items())
        return tuple(value if known is None else known.get(value, len(known)) for value, known in values)

    return key


@dataclass(frozen=True)
class Kind:
    """A kind of record.

    Attributes:
        name: in files; that of the bench's command, most often.
        entries: the classes of its entries.
        settings: names of what must be the same for a run to be taken up, with what they are in words.
        others: names of settings that are known only after a while, or are of one part, in the same way.
        order: to sort entries by; ``None`` leaves them as they were found.
        packages: whose versions matter where they are installed, besides ``bench.results.machine.PACKAGES``.
    """

    name: str
    entries: tuple[type[Entry], ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    order: Callable[[Any], Any] | None = field(default=None, compare=False)
    packages: tuple[str, ...] = ()

    def entry_of(self, content: Mapping[str, Any]) -> Entry:
        """An entry, from what a file has of it.

        Raises:
            ValueError: it is of no part of this kind, or has a name that its part has not.
        """
        name = content.get("part")
        found = next((one for one in self.entries if one.part == name), None)
        if found is None:
            raise ValueError(f"{self.name} has no part {name!r}; it has {', '.join(one.part for one in self.entries)}")
        try:
            return found.of(content)
        except TypeError as error:
            raise ValueError(f"an entry of part {name}: {error}") from error

    def require_settings(self, settings: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` for a setting that is not declared."""
        if other := settings.keys() - self.settings.keys() - self.others.keys():
            raise ValueError(f"{self.name} has no setting {', '.join(sorted(other))}")


FORMAT = 2


def save(record: Record, path: Path) -> None:
    """Writes a record. The file is there at once: what ends the process in the middle costs nothing of what was there
    before.

    Raises:
        BenchError: the file cannot be written.
    """
    content = {
        "format": FORMAT,
        "kind": record.kind,
        "machine": asdict(record.machine),
        "settings": record.settings,
        "skipped": record.skipped,
        "seconds": record.seconds,
        "entries": [entry.content() for entry in record.entries],
    }
    text = json.dumps(content, indent=1)
    text = re.sub(r"\[[-+.\deE,\s]+\]", lambda numbers: f"[{' '.join(numbers.group()[1:-1].split())}]", text)
    try:
        write_text(path, text + "\n")
    except OSError as error:
        raise BenchError(f"results cannot be written to {path} ({error.strerror}); name another file") from error


def load(path: Path, find_kind: Callable[[str], Kind]) -> Record:
    """Reads what ``save`` wrote.

    Args:
        path: of the file.
        find_kind: gives the kind of a name.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    try:
        return _record(loaded(path.read_text(), "save"), find_kind)
    except OSError as error:
        raise BenchError(f"results cannot be read from {path} ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"{path} holds no results of `python -m bench ... --json` ({error})") from error


def _record(content: dict[str, Any], find_kind: Callable[[str], Kind]) -> Record:
    if content.pop("format") != FORMAT:
        raise ValueError("another format")
    kind = find_kind(content["kind"])
    kind.require_settings(content["settings"])
    machine = Machine(**content.pop("machine"))
    entries = [kind.entry_of(entry) for entry in content.pop("entries")]
    return Record(machine=machine, entries=entries, **content)
