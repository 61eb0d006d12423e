"""What happened to each saved tensor of a forward: the raw material of a report."""

from __future__ import annotations

import re
from dataclasses import dataclass

from actcore import SavedTensor

RECOMPUTED = "recomputed"
"""In the place of a codec: nothing is stored, and backward recomputes the tensor."""

IN_CHUNKS = "gradients, in chunks"
"""The start of the codec's name for a chunked loss, which keeps its gradients."""


def name_of_chunks(rows: int, nbytes: int) -> str:
    """Return the codec's name for a chunked loss with so many rows in a chunk, whose forward takes so many bytes beside
    the gradients that it keeps."""
    return f"{IN_CHUNKS} of {rows} rows, {nbytes} bytes"


def bytes_of_chunks(name: str) -> int:
    """Return the bytes in a name that ``name_of_chunks`` returned."""
    found = re.fullmatch(rf"{IN_CHUNKS} of \d+ rows, (\d+) bytes", name)
    if found is None:
        raise ValueError(f"name must be that of a chunked loss, got {name!r}")
    return int(found[1])


@dataclass(slots=True)
class Record:
    """One saved tensor.

    Attributes:
        saved: its description.
        codec: how it is stored, in words.
        why: the reason.
        owner: who keeps it alive anyway, in which case its bytes do not count; empty if only autograd does.
        original_bytes: what plain autograd would keep for it; 0 where an earlier record counts the same storage.
        stored_bytes: what is kept for it; 0 where it shares what an earlier record counts.
        host: whether that was taken to host memory from another device.
        parts: the records of what a layer stores in the tensor's place; ``None`` for any other tensor.
    """

    saved: SavedTensor
    codec: str
    why: str
    owner: str = ""
    original_bytes: int = 0
    stored_bytes: int = 0
    host: bool = False
    parts: list[Record] | None = None

    def settle(self) -> None:
        """Adds up what became of the parts."""
        parts = self.parts or []
        self.stored_bytes = sum(part.stored_bytes for part in parts)
        self.host = self.host or any(part.host for part in parts)
        if parts and all(part.codec == RECOMPUTED for part in parts):
            self.codec, self.why = RECOMPUTED, parts[0].why


def kept_by(owner: str, saved: SavedTensor) -> Record:
    """The record of a tensor that something else keeps alive."""
    return Record(saved, "kept", f"{owner}: alive anyway", owner)
