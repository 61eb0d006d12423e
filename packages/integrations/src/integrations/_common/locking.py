"""``OwnLock``: a lock for objects that are copied and pickled with a model."""

from __future__ import annotations

import threading
from typing import Any


class OwnLock:
    """A reentrant lock, to be used in ``with``. A copy of its owner, pickled or not, gets a lock of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnLock, ()
