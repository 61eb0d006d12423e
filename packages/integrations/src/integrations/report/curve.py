"""A report's timeline as it is drawn: without moments at which nothing changes, the forward cut into bands by
module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integrations.report.row import Row
from integrations.report.timeline import make_timeline
from integrations.report.tree import cut, make_tree


@dataclass(frozen=True)
class Band:
    """Moments ``start`` to ``end`` of forward, in which tensors of one module were saved."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Curve:
    """Bytes at each moment.

    Attributes:
        original: what autograd alone would keep.
        stored: what is kept instead.
        device: the part of ``stored`` that is not in host memory.
        bands: the forward's.
        turn: the last moment of the forward.
    """

    original: list[int]
    stored: list[int]
    device: list[int]
    bands: tuple[Band, ...]
    turn: int


def make_curve(rows: Sequence[Row], bands: int, gradient_bytes: int = 0) -> Curve | None:
    """The curve, with about this number of bands; ``None`` if nothing was saved. See ``make_timeline``."""
    counted = [row for row in rows if not row.owner and (row.original_bytes or row.stored_bytes)]
    if not counted:
        return None
    moments = make_timeline(counted, gradient_bytes)
    return Curve(
        [moment.original_bytes for moment in moments],
        [moment.device_bytes + moment.host_bytes for moment in moments],
        [moment.device_bytes for moment in moments],
        _bands(counted, bands),
        len(counted),
    )


def _bands(counted: list[Row], most: int) -> tuple[Band, ...]:
    names: dict[int, str] = {}
    for part in cut(make_tree(counted), most):
        names |= {id(row): part.path or part.name for row in part.all_rows()}
    found: list[Band] = []
    for place, row in enumerate(counted):
        name = names.get(id(row), "")
        if found and found[-1].name == name:
            found[-1] = Band(name, found[-1].start, place + 1)
        else:
            found.append(Band(name, place, place + 1))
    return tuple(found)
