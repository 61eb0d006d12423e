"""``Row``: what a report says of one saved tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from integrations.tracing.storage.records import Record


@dataclass(frozen=True)
class Row:
    """One saved tensor.

    Attributes:
        module: path of the module that saved it; empty for the model itself.
        operator: the call that saved it.
        role: its role in the call: ``"input"``, ``"other"``, ``"result"`` or ``"internal"``, or a dropout's ``"mask"``;
            ``"compiled"`` where a region of ``torch.compile`` saved it, and the operators are those that use it in
            backward.
        shape, dtype: of the tensor.
        codec: how it is stored; ``"kept"`` as it is, ``"copied"`` exactly, so that a larger storage can go, or
            ``"recomputed"``: nothing is stored.
        original_bytes: what plain autograd keeps alive for it: its whole storage, in the first row that saves it.
        stored_bytes: what is kept instead; 0 where it shares what an earlier row counts.
        why: the reason for the codec.
        owner: who keeps the tensor alive anyway (a parameter, a buffer, an input), so that its bytes do not count.
        host: whether what is kept was taken to host memory.
        seconds: the time that storing and restoring it took; ``None`` if it was not measured.
    """

    module: str
    operator: str
    role: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    codec: str
    original_bytes: int
    stored_bytes: int
    why: str
    owner: str
    host: bool = False
    seconds: float | None = None

    @classmethod
    def of(cls, record: Record, seconds: float | None = None) -> Row:
        """The row of a session's record."""
        saved = record.saved
        return cls(
            saved.module,
            saved.operator,
            saved.role,
            tuple(saved.shape),
            saved.dtype,
            record.codec,
            record.original_bytes,
            record.stored_bytes,
            record.why,
            record.owner,
            record.host,
            seconds,
        )
