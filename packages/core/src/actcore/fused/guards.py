"""The guard of codes that stand for derivatives: a byte for each stretch of elements, behind the codes."""

from __future__ import annotations

from actcore.ops import group_count, packed_bytes

GUARDS = ("none", "nan", "nonfinite")
"""What a guard looks for: nothing, NaN, or NaN and infinities."""

STRETCH = 1024
"""Elements that share a byte, in memory order; csrc/codec/guard.h."""


def guarded_bytes(numel: int, bits: int, guarded: bool) -> int:
    """Bytes that ``numel`` codes of ``bits`` bits take with their guard."""
    return packed_bytes(numel, bits) + (group_count(numel, STRETCH) if guarded else 0)
