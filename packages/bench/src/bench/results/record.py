"""``Record``: the entries of a run, with what is needed to repeat it; and what is computed from several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from bench.results.entry import Entry
from bench.results.machine import Machine

if TYPE_CHECKING:
    from bench.results.statistics import Difference


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
    from bench.results.statistics import paired_difference  # scipy, which a machine that is lent need not have

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
