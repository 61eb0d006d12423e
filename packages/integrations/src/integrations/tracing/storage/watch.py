"""An observer of what a session stores, and a function that is called when autograd unpacks a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from actcore import GroupAffine, SavedTensor
from actcore import replay as native
from integrations.tracing.storage.forms import Packed

Unpack = Callable[[Packed], Tensor]


class Observer(Protocol):
    """Is told what a session sees, while it measures."""

    def called(self, tensors: Iterable[Tensor], ours: bool) -> None:
        """A call is over. ``tensors`` are its arguments and results; ``ours`` is whether what autograd saved for it
        came to our hooks."""

    def stored(self, saved: SavedTensor, tensor: Tensor, codec: GroupAffine, packed: Packed) -> None:
        """A tensor was quantised, or found stored already."""

    def stored_beside(self, packed: Packed) -> None:
        """A tensor was quantised, or found so, with bits that a plan does not choose."""

    def forward_is_over(self) -> None:
        """The session was left without an exception."""

    def cancel(self) -> None:
        """The session was left by an exception."""


@contextmanager
def watched_unpacks(unpack: Unpack) -> Iterator[None]:
    """A block in which everything that is unpacked in this thread goes through ``unpack``."""
    outer = native.watch(unpack)
    try:
        yield
    finally:
        native.watch(outer)
