"""``accepts_older_names``: arguments that have been renamed, and are still taken by their older names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def accepts_older_names(**older: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator for functions that take arguments by an older name, too.

    Args:
        older: the older name of each argument, by the name that it has now.

    Raises:
        TypeError: in the function: an argument is given by both names.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            for name, before in older.items():
                if before in kwargs:
                    if name in kwargs:
                        raise TypeError(f"{before} is the older name of {name}, got both; pass {name} alone")
                    kwargs[name] = kwargs.pop(before)
            return function(*args, **kwargs)

        return call

    return decorate
