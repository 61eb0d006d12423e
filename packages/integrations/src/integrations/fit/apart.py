"""``fitted_apart``: fits that are made once, where nothing of the caller's reaches them."""

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

    There no mode of the caller's is on: functorch, fake tensors, a default device, or hooks on saved tensors, of which
    some give back other numbers than they were given. One fit at a time, so that threads that want the same result wait
    for one fit, which is what the inner cache is for. The outer one is for every later call, which starts no thread.
    """

    def decorate(fit: Callable[_P, _T]) -> Callable[_P, _T]:
        once = lru_cache(maxsize=most)(fit)

        @lru_cache(maxsize=most)
        @wraps(fit)
        def known(*arguments: Any) -> _T:
            if getattr(_here, "fits", False):  # a function that is fitted needs a fit itself
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
