"""``Entry``: what was measured of one subject in one way. A bench declares each kind of entry as a class, once::

    @part("time", "steps of a network, trained in one way")
    class Times(Entry):
        model: str = at("the network")
        way: str = at("how it is trained")
        seconds: list[float] = series("s", "of steps in this way")

Coordinates say what an entry is of, metrics what was found. Files, their documentation and all look-ups follow from the
declaration, and a name that it has not is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from statistics import median
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

Declared = TypeVar("Declared", bound="Entry")

COORDINATE, METRIC = "coordinate", "metric"


def at(words: str, *, default: Any = MISSING) -> Any:
    """A coordinate of an entry."""
    return field(default=default, metadata={"role": COORDINATE, "unit": "", "words": words})


def metric(unit: str, words: str, *, default: Any = None) -> Any:
    """A number of an entry, or a text; ``default`` is what it has where nothing was measured.

    Args:
        unit: such as ``"bytes"`` or ``"s"``; empty where there is none.
        words: what it is.
        default: ``None`` for what is unknown.
    """
    return field(default=default, metadata={"role": METRIC, "unit": unit, "words": words})


def series(unit: str, words: str) -> Any:
    """Numbers of an entry, such as one a round; none where nothing was measured."""
    return field(default_factory=list, metadata={"role": METRIC, "unit": unit, "words": words})


def table(unit: str, words: str) -> Any:
    """Numbers of an entry by name; none where nothing was measured."""
    return field(default_factory=dict, metadata={"role": METRIC, "unit": unit, "words": words})


def nested(kind: type, words: str, *, many: bool = False) -> Any:
    """Numbers that come together, as a class that ``numbers`` decorates; ``None`` where not measured.

    Args:
        kind: that class.
        words: what they are of.
        many: whether it is a list of such; it is empty where nothing was measured.
    """
    metadata = {"role": METRIC, "unit": "", "words": words, "nested": kind}
    return field(default_factory=list, metadata=metadata) if many else field(default=None, metadata=metadata)


@dataclass_transform(frozen_default=True)
def numbers(cls: type[Any]) -> type[Any]:
    """Makes a class of metrics that is a metric of entries itself."""
    return dataclass(frozen=True)(cls)


@dataclass_transform(field_specifiers=(at,), frozen_default=True)  # the others always have a default
def part(name: str, words: str) -> Callable[[type[Declared]], type[Declared]]:
    """Makes a class of entries of the class that it decorates.

    Args:
        name: of the part of a bench that measures them, by which files know them.
        words: what one of them is of.
    """

    def declare(cls: type[Declared]) -> type[Declared]:
        made = dataclass(frozen=True)(cls)
        made.part, made.words = name, words
        return made

    return declare


@dataclass_transform(field_specifiers=(at,), kw_only_default=True, frozen_default=True)
def metrics(cls: type[Declared]) -> type[Declared]:
    """Makes a class of what several kinds of entries have in common; an entry is given them by name."""
    return dataclass(frozen=True, kw_only=True)(cls)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What all entries have: why there is nothing, if there is nothing, and the commit.

    Attributes:
        does_not_apply: why the way is none for this subject; empty otherwise.
        failure: what went wrong; empty otherwise.
        not_measured: why metrics are missing that this machine cannot measure; empty otherwise.
        commit: that it was measured with, with a plus where files differed from it.
    """

    part: ClassVar[str]
    words: ClassVar[str]

    does_not_apply: str = ""
    failure: str = ""
    not_measured: str = ""
    commit: str = ""

    @property
    def place(self) -> tuple[Any, ...]:
        """The coordinates, which tell it from other entries of its part."""
        return tuple(getattr(self, name) for name in self.coordinates())

    @property
    def label(self) -> str:
        """The coordinates in words."""
        return ", ".join(str(value) for value in self.place if value is not None)

    @property
    def reason(self) -> str:
        """Why there is nothing, or not all, in words; empty where nothing is missing."""
        return (self.failure and f"failed: {self.failure}") or self.does_not_apply or self.not_measured

    @property
    def outcome(self) -> str:
        """The same in a word or two, for a cell of a table."""
        return "failed" if self.failure else "does not apply" if self.does_not_apply else ""

    @classmethod
    def coordinates(cls) -> list[str]:
        """Their names."""
        return [one.name for one in fields(cls) if one.metadata.get("role") == COORDINATE]

    @classmethod
    def declared(cls) -> list[tuple[str, str, str, str]]:
        """Name, role, unit and words of each coordinate and metric."""
        return list(_declared(cls))

    def content(self) -> dict[str, Any]:
        """As files have it: by name, what is empty left out."""
        found = asdict(self)
        empty = {one.name for one in fields(self) if _is_empty(found[one.name]) and found[one.name] == _default_of(one)}
        return {"part": self.part, **{name: value for name, value in found.items() if name not in empty}}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From ``content``.

        Raises:
            TypeError: it has a name that is not declared.
        """
        found = {name: value for name, value in content.items() if name != "part"}
        for one in fields(cls):
            kind, value = one.metadata.get("nested"), found.get(one.name)
            if kind is not None and value is not None:
                found[one.name] = [kind(**some) for some in value] if isinstance(value, list) else kind(**value)
        return cls(**found)


class Timed:
    """What entries have whose steps took turns with plain ones."""

    seconds: list[float]
    plain_seconds: list[float]

    @property
    def ratios(self) -> list[float]:
        """A step's time over the plain one's of the same round, by round."""
        return [one / plain for one, plain in zip(self.seconds, self.plain_seconds, strict=True)]

    @property
    def ratio(self) -> float | None:
        """The median of these; ``None`` where not timed."""
        return median(self.ratios) if self.seconds else None


def _declared(cls: Any, of: str = "") -> Iterator[tuple[str, str, str, str]]:
    for one in fields(cls):
        if one.metadata:
            yield f"{of}{one.name}", one.metadata["role"], one.metadata["unit"], one.metadata["words"]
        if "nested" in one.metadata:
            yield from _declared(one.metadata["nested"], f"{one.name}.")


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _default_of(one: Any) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()
