"""What is stored at each moment of one training step, by the report's rows.

Autograd runs the nodes of a graph in the reverse order of their making, the last first: of all that are left, the
newest waits for none of the others. It lets go of what a node saved when that node has run. So the order of saving,
backwards, is the order of release; on one device, and without a checkpoint's segments, which save anew in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integrations.report.row import Row
from integrations.report.words import LOSS


@dataclass(frozen=True)
class Moment:
    """The state after one event.

    Attributes:
        module: whose tensor was saved, or let go; empty for the model itself, and before the first event.
        original_bytes: what autograd alone would keep.
        device_bytes: what is kept instead, without what was taken to host memory.
        host_bytes: that.
    """

    module: str
    original_bytes: int
    device_bytes: int
    host_bytes: int


def timeline_of(rows: Sequence[Row], gradient_bytes: int = 0) -> tuple[Moment, ...]:
    """The moments: the beginning, then one for each tensor that is saved in forward, then one for each that backward
    lets go. Tensors that somebody else keeps alive are no events.

    Args:
        rows: of a forward.
        gradient_bytes: of the gradient that the loss's backward makes, where that is known: it comes before all is let
            go, and goes with the first tensor that a part of the model has saved.
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
