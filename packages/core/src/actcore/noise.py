"""Streams for random rounding: no two packs of a run share one, and a rerun draws the same."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import torch

from actcore.compiling import constant_when_traced

_MASK = (1 << 64) - 1


@constant_when_traced
def stream_of(identity: str, step: int, rank: int, micro_step: int = 0) -> int:
    """Return a 64-bit stream for one saved tensor of one forward on one rank.

    Args:
        identity: text that stays the same from step to step: module path, operator, role and occurrence.
        step: number of the forward or of the training step.
        rank: rank of this process; ranks round independently.
        micro_step: number of the forward within a step that has several.
    """
    return _mix(identity_of(identity) ^ step_key(step, rank, micro_step))


def step_key(step: int, rank: int, micro_step: int = 0) -> int:
    """What the streams of one forward have in common: with a tensor's ``identity_of`` it makes its stream."""
    return _mix(step ^ _mix(rank ^ _mix(micro_step) if micro_step else rank))


def current_rank() -> int:
    """Return the rank of this process, 0 outside of distributed training. Ranks round independently under one plan."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


@dataclass
class Streams:
    """A counter that gives every pack its own stream. Threads may share it.

    ``hooks``, ``saved_tensors`` and ``save_for_backward`` use one counter per seed and process, unless you pass
    another. Your own counter makes a run repeatable inside a process, and its two fields are its whole state.

    Attributes:
        identity: counters with different identities give different streams.
        position: number of streams given so far.
    """

    identity: str = ""
    position: int = 0

    def next(self) -> int:
        """Return the next stream: a hash of identity, position and this process's rank."""
        with _lock:
            position = self.position
            self.position = position + 1
        stream: int = stream_of(self.identity, position, current_rank())
        return stream


_lock = threading.Lock()
_shared: dict[int, Streams] = {}


def shared_streams(seed: int) -> Streams:
    """The counter of this process for a seed: whoever rounds with the seed draws from it, so that no two share a
    stream, however short their lives are."""
    return _shared.setdefault(seed, Streams())


@lru_cache(maxsize=65536)
def identity_of(text: str) -> int:
    """64 bits for what stays from step to step."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014), after its increment: neighbours part entirely."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
