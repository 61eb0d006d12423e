"""``fitted_apart``: runs each fit once, where no state of the caller's thread reaches it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock, Thread, local
from typing import Any, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T")

_lock = Lock()
_here = local()


def fitted_apart(most: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorates a fit: it runs in a thread of its own, and the last ``most`` results are kept.

    No mode of the caller's is active in that thread: functorch, fake tensors, a default device, or hooks on saved
    tensors, some of which return other numbers than they were given. One fit runs at a time, and threads that want the
    same result wait for the same fit: the inner cache is for them. The outer one is for later calls, which then start
    no thread.
    """

    def decorate(fit: Callable[_P, _T]) -> Callable[_P, _T]:
        once = lru_cache(maxsize=most)(fit)

        @lru_cache(maxsize=most)
        @wraps(fit)
        def known(*arguments: Any) -> _T:
            if getattr(_here, "fits", False):  # fitting a function may need another fit
                return once(*arguments)
            found: list[_T] = []
            failed: list[BaseException] = []

            def run() -> None:
                _here.fits = True
                try:
                    found.append(once(*arguments))
                except BaseException as error:
                    failed.append(error)

            with _lock:
                worker = Thread(target=run, name="fewbit-fit")
                worker.start()
                worker.join()
            if failed:
                raise failed[0]
            return found[0]

        return cast(Callable[_P, _T], known)

    return decorate
