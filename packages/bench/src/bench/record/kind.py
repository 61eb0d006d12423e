"""``Kind``: what a bench's records have, of which files, their documentation and their checks are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.record.entry import Entry


@dataclass(frozen=True)
class Kind:
    """A kind of record.

    Attributes:
        name: in files; that of the bench's command, most often.
        entries: the classes of its entries.
        settings: names of what must be the same for a run to be taken up, with what they are in words.
        others: names of settings that are known only after a while, or are of one part, in the same way.
        order: to sort entries by; ``None`` leaves them as they were found.
        packages: whose versions matter where they are installed, besides ``bench.machine.PACKAGES``.
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
