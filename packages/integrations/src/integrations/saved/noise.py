"""Streams for random rounding: no two packs of a run share one, and a rerun draws the same."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import torch

_MASK = (1 << 64) - 1


def stream_of(identity: str, step: int, rank: int) -> int:
    """A 64-bit stream for one saved tensor of one forward on one rank."""
    return _mix(_identity(identity) ^ _mix(step ^ _mix(rank)))


def current_rank() -> int:
    """This process's rank, 0 outside of distributed training: ranks round independently under one plan."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


@lru_cache(maxsize=65536)
def _identity(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), after its increment: neighbours part entirely."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
