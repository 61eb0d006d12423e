"""Who looks on: an observer of what a session stores, and who is asked when autograd unpacks a tensor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from actcore import GroupAffine, SavedTensor
from actcore import replay as native
from integrations.saved.forms import Packed

Unpack = Callable[[Packed], Tensor]

_here = threading.local()
_unpack = native.unpack  # what its own ``unpack`` does, shorter


class Observer(Protocol):
    """Who is told what a session sees, while it measures."""

    def called(self, tensors: Iterable[Tensor], ours: bool) -> None:
        """A call is over: its arguments and results, and whether what autograd saved for it came to our hooks."""

    def stored(self, saved: SavedTensor, tensor: Tensor, codec: GroupAffine, packed: Packed) -> None:
        """A tensor was quantised, or found stored already."""

    def stored_beside(self, packed: Packed) -> None:
        """A tensor was quantised, or found so, in bits that are not to be chosen."""

    def forward_is_over(self) -> None:
        """The session was left in good order."""

    def cancel(self) -> None:
        """The session was left by an exception."""


@contextmanager
def watched_unpacks(unpack: Unpack) -> Iterator[None]:
    """What is unpacked in this thread goes through ``unpack`` for the length of the block."""
    outer = getattr(_here, "unpack", None)
    _here.unpack = unpack
    try:
        yield
    finally:
        _here.unpack = outer


def unpack(packed: Packed) -> Tensor:
    """The unpack hook: usually nobody but the tensor itself is asked."""
    watcher: Unpack | None = getattr(_here, "unpack", None)
    found: Tensor = _unpack(packed) if watcher is None else watcher(packed)
    return found
