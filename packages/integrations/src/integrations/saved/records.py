"""What happened to each saved tensor of a forward: the raw material of a report."""

from __future__ import annotations

from dataclasses import dataclass

from actcore import SavedTensor

RECOMPUTED = "recomputed"
"""In the place of a codec: nothing is stored, and backward makes the tensor again."""


@dataclass(slots=True)
class Record:
    """One saved tensor.

    Attributes:
        saved: its description.
        codec: how it is stored, in words.
        why: the reason.
        owner: who keeps it alive anyway; empty if only autograd does. Bytes count nothing then.
        original_bytes: what plain autograd would keep for it; 0 where an earlier record counts the same storage.
        stored_bytes: what is kept for it; 0 where it shares what an earlier record counts.
        host: whether that was taken to host memory from another device.
    """

    saved: SavedTensor
    codec: str
    why: str
    owner: str = ""
    original_bytes: int = 0
    stored_bytes: int = 0
    host: bool = False


def kept_by(owner: str, saved: SavedTensor) -> Record:
    """The record of a tensor that somebody else keeps alive anyway."""
    return Record(saved, "kept", f"{owner}: alive anyway", owner)
