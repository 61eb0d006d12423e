"""What a compressed forward says of itself when it did nothing: compression is never a silent no-op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from integrations.report import NOTHING_LEFT, format_bytes
from integrations.saved.records import Record

if TYPE_CHECKING:
    from integrations.compression import Compression

_REASONS = 5  # as many as can be read in one message


def judge(handle: Compression, records: Sequence[Record]) -> None:
    """Says so if a forward that has ended was compressed to no effect.

    Raises:
        RuntimeError: it was, and the handle is strict.
    """
    stuck = why_not_offloaded(records) if handle.level.offload else ""
    if why := why_not_smaller(records):
        message = f"{handle.name}: nothing is stored in fewer bytes: {why}"
        if handle.strict:
            raise RuntimeError(f"{message}; without strict=True this is a warning, and level L0 is off")
        if not (stuck and handle.level.bits is None):  # said below: the level was to do nothing else
            handle.warn_once("smaller", message)
    if stuck:
        handle.warn_once("offload", f"{handle.name}: nothing is offloaded: {stuck}")


def why_not_smaller(records: Sequence[Record]) -> str:
    """Why what a forward saved takes as many bytes as ever; empty where it takes fewer, or went to the host."""
    if any(record.host and record.stored_bytes for record in records):
        return ""
    before = sum(record.original_bytes for record in records)
    after = sum(record.stored_bytes for record in records)
    if after < before:
        return ""
    if not records:
        return "autograd saved nothing that its hooks see"
    if not before:
        owners = Counter(record.owner for record in records if record.owner)
        listed = ", ".join(f"{count} x {owner}" for owner, count in owners.most_common())
        return f"all that autograd saved is kept alive by others anyway ({listed or 'tensors without elements'})"
    reasons: Counter[str] = Counter()
    for record in records:
        reasons[record.why] += record.stored_bytes
    listed = "; ".join(f"{format_bytes(count)}: {why}" for why, count in reasons.most_common(_REASONS) if count)
    return f"{format_bytes(before)} before and {format_bytes(after)} after ({listed})"


def why_not_offloaded(records: Sequence[Record]) -> str:
    """Why nothing went to the host, and what stays where; empty where something went."""
    if any(record.host and record.stored_bytes for record in records):
        return ""
    alone = [record for record in records if not record.owner]
    where: Counter[str] = Counter()
    for record in alone:
        where[str(record.saved.device)] += record.stored_bytes
    listed = ", ".join(f"{format_bytes(count)} on {device}" for device, count in where.most_common())
    return f"{NOTHING_LEFT}; kept as it is stored: {listed or '0 B'}"
