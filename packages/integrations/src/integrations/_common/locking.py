"""``OwnLock``: a lock for objects that are copied and pickled with a model."""

from __future__ import annotations

import threading
from typing import Any


class OwnLock:
    """A reentrant lock. A copy of its owner, pickled or not, gets a lock of its own.

    Attributes:
        held: the lock, to be used in ``with``. Both ends of that block are C's, so that no interrupt leaves it locked.
    """

    def __init__(self) -> None:
        self.held = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnLock, ()
