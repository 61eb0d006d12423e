"""``OwnLock`` and ``Users``: what keeps threads apart, for objects that are copied and pickled with a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

_PAUSE = 0.002  # seconds between two looks at whether others are over; what is waited for takes a hundred times as long


class OwnLock:
    """A reentrant lock. A copy of its owner, pickled or not, gets a lock of its own.

    Attributes:
        held: the lock, to be used in ``with``. Both ends of that block are C's, so that no interrupt leaves it locked.
    """

    def __init__(self) -> None:
        self.held = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnLock, ()


class Users:
    """The forwards of a model that run in several threads, and one that has to be alone for a while, since it exchanges
    what the others read. A copy of its owner has none.

    A forward that is over by an interrupt is known by its ``Use``, which is gone; one of a process that has forked, by
    its thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._uses: WeakSet[Use] = WeakSet()
        self._waiting: set[threading.Thread] = set()  # which do not run the model yet
        self._alone: threading.Thread | None = None

    def enter(self) -> Use:
        """The use by a forward that starts now, which holds it and ends it. Waits while another thread is alone or
        wants to be, unless it is inside of another forward of this thread."""
        use = Use()
        while True:
            with self._lock:
                inside = any(other.thread is use.thread and other.runs for other in self._uses)
                wanted = any(other.is_alive() for other in self._waiting - {use.thread})
                if inside or (self._is_free_for(use.thread) and not wanted):
                    self._uses.add(use)
                    return use
            time.sleep(_PAUSE)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block that begins once no other thread runs the model, and in which none starts to. For a forward that has
        entered and does not run the model yet."""
        thread = threading.current_thread()
        outer = self._alone is thread
        try:
            self._waiting.add(thread)
            while not self._takes(thread):
                time.sleep(_PAUSE)
            yield
        finally:
            if self._alone is thread and not outer:  # first: behind a call an interrupt may come
                self._alone = None
            self._waiting.discard(thread)

    def _takes(self, thread: threading.Thread) -> bool:
        with self._lock:
            ready = self._waiting | {thread}
            others = any(use.runs and use.thread not in ready for use in self._uses)
            if others or not self._is_free_for(thread):
                return False
            self._alone = thread
            return True

    def _is_free_for(self, thread: threading.Thread) -> bool:
        """Whether no other thread is alone."""
        return self._alone in (None, thread) or not self._alone.is_alive()

    def __reduce__(self) -> tuple[Any, ...]:
        return Users, ()


class Use:
    """One forward of a model, in one thread."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self._over = False

    def end(self) -> None:
        """Notes that the forward is over."""
        self._over = True

    @property
    def runs(self) -> bool:
        """Whether the forward is going on."""
        return not self._over and self.thread.is_alive()
