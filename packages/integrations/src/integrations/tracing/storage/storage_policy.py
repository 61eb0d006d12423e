"""``StoragePolicy``: how a session stores a tensor, be it by its level or by a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from actcore import Codec, GroupAffine, Offload, Raw, SavedTensor
from integrations.policies.levels import Level
from integrations.policies.policy import ExactForms, FixedBits, Policy, SaveDecision, Shared, Through, make_policy
from integrations.policies.stores import BESIDE, HostCopies, Store
from integrations.tracing.storage.regions import inner

_BITS = 8
"""The bits of the level that says what may be rounded, where a codec says how."""


@dataclass(frozen=True, eq=False)
class StoragePolicy:
    """A policy and a level.

    Attributes:
        policy: decides the codecs.
        level: gives the seed, and whether the stored form goes to the host.
        planned: the beginning of a record's reason for a rounded tensor; empty if no plan says so.
        copies: those to the host and back, if the level asks for them.
    """

    policy: Policy
    level: Level
    planned: str = ""
    copies: HostCopies = BESIDE


@dataclass(frozen=True)
class _AsItIs:
    """The policy that keeps every tensor."""

    def decide(self, saved: SavedTensor) -> SaveDecision:
        return SaveDecision(Raw(), "as planned: kept as it is")


@lru_cache(maxsize=256)
def storage_policy(store: Store, base: Level, copies: HostCopies = BESIDE) -> StoragePolicy:
    """How a value waits in a store. ``base`` says what the store does not, and ``copies`` how it goes to the host if
    the store is there."""
    level = store.level(base)
    if store.exact:
        return StoragePolicy(make_policy(store, base), _unrounded(level), copies=copies)
    return StoragePolicy(make_policy(store, base), level, f"as planned: {store}", copies)


def through(codec: Codec, base: Level) -> StoragePolicy:
    """How what may be rounded waits in a codec's form, on the host if that is an ``Offload``; tensors of which backward
    needs no more than signs and the like are stored as these, exactly. ``base`` says what the codec does not."""
    own, store = inner(codec), Store(_BITS, host=isinstance(codec, Offload))
    level = store.level(base)
    if isinstance(own, GroupAffine):
        level = replace(replace(store, bits=own.bits).level(base), group_size=own.group_size)
    return StoragePolicy(Through(Shared(level), own), level, f"as planned: {codec}")


@lru_cache(maxsize=16)
def exactly(base: Level) -> StoragePolicy:
    """How a tensor without a plan waits, if nothing is to be rounded."""
    level = _unrounded(replace(base, offload=False))
    return StoragePolicy(ExactForms(level), level)


@lru_cache(maxsize=16)
def in_eight_bits(base: Level) -> StoragePolicy:
    """How a tensor without a plan waits, if it may be rounded and the level does not say how."""
    level = Store(8).level(base)
    return StoragePolicy(FixedBits(level), level)


@lru_cache(maxsize=16)
def compiled(level: Level) -> StoragePolicy:
    """How a compiled region stores tensors without a plan in a forward at a level; for an adaptive level, with fixed
    bits."""
    return exactly(level) if level.bits is None else StoragePolicy(FixedBits(level), level)


def on_device(way: StoragePolicy) -> StoragePolicy:
    """How a recomputed tensor waits where a level says how all are stored: not on the host, since it is about to be
    read."""
    return replace(way, level=replace(way.level, offload=False)) if way.level.offload else way


@lru_cache(maxsize=16)
def kept(base: Level) -> StoragePolicy:
    """How a value waits as it is."""
    return StoragePolicy(_AsItIs(), _unrounded(replace(base, offload=False)))


def _unrounded(level: Level) -> Level:
    return replace(level, bits=None, adaptive=False)
