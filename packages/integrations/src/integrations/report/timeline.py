"""What is stored at each moment of one training step, by the report's rows.

Autograd runs the nodes of a graph in the reverse order of their making, the last first: of all that are left, the
newest waits for none of the others. It lets go of what a node saved when that node has run. So the order of saving,
backwards, is the order of release; on one device, and without a checkpoint's segments, which save anew in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integrations.report.row import Row


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


def timeline_of(rows: Sequence[Row]) -> tuple[Moment, ...]:
    """The moments: the beginning, then one for each tensor that is saved in forward, then one for each that backward
    lets go. Tensors that somebody else keeps alive are no events."""
    saved = [row for row in rows if not row.owner]
    moments = [Moment("", 0, 0, 0)]
    for sign, order in ((1, saved), (-1, saved[::-1])):
        for row in order:
            before = moments[-1]
            stored = sign * row.stored_bytes
            moments.append(
                Moment(
                    row.module,
                    before.original_bytes + sign * row.original_bytes,
                    before.device_bytes + (0 if row.host else stored),
                    before.host_bytes + (stored if row.host else 0),
                )
            )
    return tuple(moments)
