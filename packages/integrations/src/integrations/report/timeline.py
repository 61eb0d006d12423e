"""What is stored at each moment of one training step, from the report's rows.

Autograd runs the nodes of a graph in the reverse order of their creation: of all nodes that are left, the newest waits
for none of the others. It frees what a node saved once that node has run. So the reverse order of saving is the order
of release. That holds on one device, without the segments of checkpoints, which save anew in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integrations.report.row import Row
from integrations.report.tree import cut, make_tree
from integrations.report.words import LOSS


@dataclass(frozen=True)
class Moment:
    """The state after one event.

    Attributes:
        module: whose tensor was saved or freed; empty for the model itself, and before the first event.
        original_bytes: what autograd alone would keep.
        device_bytes: what is kept instead, without what is in host memory.
        host_bytes: what is kept in host memory.
    """

    module: str
    original_bytes: int
    device_bytes: int
    host_bytes: int


def make_timeline(rows: Sequence[Row], gradient_bytes: int = 0) -> tuple[Moment, ...]:
    """The moments: the beginning, one for each tensor that forward saves, and one for each that backward frees. Tensors
    that something else keeps alive are no events.

    Args:
        rows: the forward's.
        gradient_bytes: bytes of the gradient that the loss's backward makes, if known. It is made before all else is
            freed, and freed with the first tensor that a part of the model has saved.
    """
    saved = [row for row in rows if not row.owner]
    moments = [Moment("", 0, 0, 0)]

    def add(module: str, original: int, device: int, host: int) -> None:
        last = moments[-1]
        moments.append(
            Moment(module, last.original_bytes + original, last.device_bytes + device, last.host_bytes + host)
        )

    for row in saved:
        stored = row.stored_bytes
        add(row.module, row.original_bytes, 0 if row.host else stored, stored if row.host else 0)
    gradient = gradient_bytes
    if gradient:
        add(LOSS, gradient, gradient, 0)
    for row in reversed(saved):
        stored = row.stored_bytes
        add(row.module, -row.original_bytes, 0 if row.host else -stored, -stored if row.host else 0)
        if gradient and row.module not in ("", LOSS):
            add(LOSS, -gradient, -gradient, 0)
            gradient = 0
    if gradient:
        add(LOSS, -gradient, -gradient, 0)
    return tuple(moments)


@dataclass(frozen=True)
class Band:
    """Moments ``start`` to ``end`` of forward, in which tensors of one module were saved."""

    name: str
    start: int
    end: int


def make_bands(rows: Sequence[Row], most: int) -> tuple[Band, ...]:
    """Cut the forward of ``make_timeline(rows)`` into bands by module.

    Args:
        rows: the forward's, without those that something else keeps alive.
        most: the most modules.
    """
    names: dict[int, str] = {}
    for part in cut(make_tree(rows), most):
        names |= {id(row): part.path or part.name for row in part.all_rows()}
    found: list[Band] = []
    for place, row in enumerate(rows):
        name = names.get(id(row), "")
        if found and found[-1].name == name:
            found[-1] = Band(name, found[-1].start, place + 1)
        else:
            found.append(Band(name, place, place + 1))
    return tuple(found)
