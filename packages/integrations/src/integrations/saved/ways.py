"""``Way``: how a session stores a tensor, be it as its level has it, or as a plan says of one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from actcore import Codec, GroupAffine, Offload, Raw, SavedTensor
from integrations.levels import Level
from integrations.saved.forms import Packed
from integrations.saved.policy import Decision, ExactForms, FixedBits, Policy, Shared, Through, policy_of
from integrations.saved.regions import inner
from integrations.saved.storing import StoredLater
from integrations.stores import Store

if TYPE_CHECKING:
    from integrations.saved.site import Site

_BITS = 8
"""Of the level that says what may be rounded, where a codec says how."""


@dataclass(frozen=True, eq=False)
class Way:
    """By which policy, at which level.

    Attributes:
        policy: decides the codecs.
        level: what else there is to know: the seed, and whether the stored form goes to the host.
        planned: what a record says first of a tensor that is rounded; empty where no plan says so.
    """

    policy: Policy
    level: Level
    planned: str = ""


class Fate(NamedTuple):
    """What a plan says of a tensor that autograd saves.

    Attributes:
        way: how it is stored, at once or when it has been made again.
        again: makes, of what is to be stored later, what autograd is to hold in its place; ``None`` for a tensor that
            is stored now.
        waits: whether it is stored once it has been made again; otherwise it is there until backward has read it.
        aside: whether what backward decides by, such as signs, is stored now even so.
    """

    way: Way
    again: Callable[[Tensor, StoredLater | None], Packed | None] | None = None
    waits: bool = False
    aside: bool = False


class Fates(Protocol):
    """What a plan says of the tensors of one forward.

    ``values`` are its numbers of the memories that are there, by the addresses of their storages; ``None`` where only
    sites know them. ``again`` is that of each ``Fate`` that has one; ``None`` where none has.
    """

    @property
    def values(self) -> Mapping[int, int] | None: ...

    @property
    def again(self) -> Callable[[Tensor], Packed | None] | None: ...

    def of(self, tensor: Tensor, site: Site | None) -> Fate:
        """What it says of one that is saved now, at a site if it has one."""


@dataclass(frozen=True)
class _AsItIs:
    """The policy of what is kept."""

    def decide(self, saved: SavedTensor) -> Decision:
        return Decision(Raw(), "as planned: kept as it is")


@lru_cache(maxsize=256)
def way_of(store: Store, base: Level) -> Way:
    """How a value waits in a store; ``base`` says what the store does not."""
    level = store.level(base)
    if store.exact:
        return Way(policy_of(store, base), _unrounded(level))
    return Way(policy_of(store, base), level, f"as planned: {store}")


def through(codec: Codec, base: Level) -> Way:
    """How what may be rounded waits as a codec stores it, on the host if that is an ``Offload``; what backward asks for
    no more than signs and the like waits in these, exactly. ``base`` says what the codec does not."""
    own, store = inner(codec), Store(_BITS, host=isinstance(codec, Offload))
    level = store.level(base)
    if isinstance(own, GroupAffine):
        level = replace(replace(store, bits=own.bits).level(base), group_size=own.group_size)
    return Way(Through(Shared(level), own), level, f"as planned: {codec}")


@lru_cache(maxsize=16)
def exactly(base: Level) -> Way:
    """How that is stored of which no plan speaks, where nothing is to be rounded."""
    level = _unrounded(replace(base, offload=False))
    return Way(ExactForms(level), level)


@lru_cache(maxsize=16)
def in_eight_bits(base: Level) -> Way:
    """How that is stored of which no plan speaks, where it may be rounded and the level says nothing."""
    level = Store(8).level(base)
    return Way(FixedBits(level), level)


@lru_cache(maxsize=16)
def compiled(level: Level) -> Way:
    """How a compiled region stores what no plan speaks of, in a forward at a level, an adaptive one's fixed bits."""
    return exactly(level) if level.bits is None else Way(FixedBits(level), level)


@lru_cache(maxsize=16)
def kept(base: Level) -> Way:
    """How a value waits as it is."""
    return Way(_AsItIs(), _unrounded(replace(base, offload=False)))


def _unrounded(level: Level) -> Level:
    return replace(level, bits=None, adaptive=False)
