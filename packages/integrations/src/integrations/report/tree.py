"""A report's rows by module: a tree of parts, each with the sums of what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from integrations.report.row import Row
from integrations.tracing.storage.records import RECOMPUTED

MODEL = "(model)"
"""The name of the model itself, whose path is empty."""


@dataclass
class Part:
    """A module and what is in it. A chain of modules with one child each is one part.

    Attributes:
        path: the module's path.
        name: the end of the path, without the path of the part around it.
        rows: what the module itself saved, and nothing else keeps alive.
        parts: the modules in it, in the order in which they first saved something.
    """

    path: str
    name: str
    rows: list[Row] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def all_rows(self) -> Iterator[Row]:
        """The rows of this module and those in it."""
        yield from self.rows
        for part in self.parts:
            yield from part.all_rows()

    @property
    def original_bytes(self) -> int:
        """What autograd alone would keep."""
        return sum(row.original_bytes for row in self.all_rows())

    @property
    def stored_bytes(self) -> int:
        """What is kept instead."""
        return sum(row.stored_bytes for row in self.all_rows())

    @property
    def seconds(self) -> float | None:
        """The time that compression took; ``None`` if it was not measured."""
        times = [row.seconds for row in self.all_rows() if row.seconds is not None]
        return sum(times) if times else None

    @property
    def smaller(self) -> str:
        """The factor by which fewer bytes are kept, as text; ``recomputed`` if nothing is kept."""
        before, after = self.original_bytes, self.stored_bytes
        if not before:
            return ""
        if after:
            return f"{before / after:.1f}"
        return RECOMPUTED if any(row.codec == RECOMPUTED for row in self.all_rows()) else ""

    def operators(self, most: int = 3) -> str:
        """The operators that save most of it, in descending order."""
        names = self.all_operators()
        return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

    def all_operators(self) -> list[str]:
        """Return the operators, those that save most first."""
        counts: Counter[str] = Counter()
        for row in self.all_rows():
            counts[row.operator or "unknown"] += row.original_bytes
        return [name for name, _ in counts.most_common()]


def make_tree(rows: Sequence[Row]) -> Part:
    """The model's tree, with what autograd alone keeps for it."""
    root = Part("", MODEL)
    known = {"": root}
    for row in rows:
        if not row.owner:
            _part(row.module, known).rows.append(row)
    for part in root.parts:
        _merge_chains(part)
    return root


def cut(root: Part, most: int) -> list[Part]:
    """At most ``most`` parts that together are the model, in its order, and of one depth if possible. A part that is
    more than half of the model is opened alone. If it has too many parts, they are grouped into runs of equal length.
    What an opened module saved itself is a part of its own."""
    found = [root]
    while True:
        deeper = [inner for part in found for inner in (_opened(part) if part.parts else [part])]
        if len(deeper) <= most:
            if deeper == found:
                return found
            found = deeper
            continue
        largest = max(found, key=lambda part: part.original_bytes)
        if not largest.parts or 2 * largest.original_bytes <= root.original_bytes:
            return found
        inner, room = _opened(largest), most - len(found) + 1
        if room < 2:
            return found
        place = found.index(largest)
        found[place : place + 1] = inner if len(inner) <= room else _stretches(inner, room)


def _stretches(parts: list[Part], most: int) -> list[Part]:
    size = -(-len(parts) // most)
    found = []
    for start in range(0, len(parts), size):
        stretch = parts[start : start + size]
        rows = [row for part in stretch for row in part.all_rows()]
        first, last = stretch[0], stretch[-1]
        found.append(first if len(stretch) == 1 else Part(f"{first.path} to {last.name}", last.name, rows))
    return found


def _opened(part: Part) -> list[Part]:
    own = [Part(part.path, part.name, part.rows)] if any(row.original_bytes for row in part.rows) else []
    return own + [inner for inner in part.parts if inner.original_bytes]


def _part(path: str, known: dict[str, Part]) -> Part:
    if path not in known:
        above, _, name = path.rpartition(".")
        known[path] = Part(path, name)
        _part(above, known).parts.append(known[path])
    return known[path]


def _merge_chains(part: Part) -> None:
    while not part.rows and len(part.parts) == 1:
        [inner] = part.parts
        part.path, part.name = inner.path, f"{part.name}.{inner.name}"
        part.rows, part.parts = inner.rows, inner.parts
    for inner in part.parts:
        _merge_chains(inner)
