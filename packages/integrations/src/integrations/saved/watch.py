"""Who is asked when autograd unpacks a tensor: usually nobody but the tensor itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from integrations.saved.storage import Exact, View

Unpack = Callable[[Exact | View], Tensor]

_here = threading.local()


@contextmanager
def watched_unpacks(unpack: Unpack) -> Iterator[None]:
    """What is unpacked in this thread goes through ``unpack`` for the length of the block."""
    outer = getattr(_here, "unpack", None)
    _here.unpack = unpack
    try:
        yield
    finally:
        _here.unpack = outer


def unpack(packed: Exact | View) -> Tensor:
    """The unpack hook."""
    watcher: Unpack | None = getattr(_here, "unpack", None)
    return packed.unpack() if watcher is None else watcher(packed)
