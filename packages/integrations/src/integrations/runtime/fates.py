"""``Fate``: what a plan says of a tensor that autograd saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from integrations.runtime.site import Site
from integrations.storing.forms import Packed
from integrations.storing.store import StoredLater
from integrations.storing.ways import Way


class Fate(NamedTuple):
    """What a plan says of a tensor that autograd saves.

    Attributes:
        way: how it is stored, at once or when it has been recomputed.
        again: makes, of what is to be stored later, what autograd is to hold in its place; ``None`` for a tensor that
            is stored now.
        waits: whether it is stored once it has been recomputed; otherwise it is there until backward has read it.
        aside: whether what backward decides by, such as signs, is stored now even so.
    """

    way: Way
    placeholder: Callable[[Tensor, StoredLater | None], Packed | None] | None = None
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
    def placeholder(self) -> Callable[[Tensor], Packed | None] | None: ...

    def of(self, tensor: Tensor, site: Site | None) -> Fate:
        """What it says of one that is saved now, at a site if it has one."""
