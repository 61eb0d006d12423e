"""One entry in a process of its own: ``python -m bench.runner.child`` answers requests, a line of JSON each.

A request names a function of a module, which is given the entry and options, and returns the entry with its numbers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from bench.errors import DoesNotApply, reason
from bench.results.entry import Entry
from bench.runner.process_memory import ENVIRONMENT
from bench.runner.workers import Ended, Worker, serve

Measured = TypeVar("Measured", bound=Entry)

_MODULE = "bench.runner.child"


class Child:
    """A process that measures entries; it is started when it is first asked, and again after it ended.

    Args:
        environment: that it has besides this process's own, the allocator's setting among it.
    """

    def __init__(self, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self._worker = Worker(_MODULE, environment=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def measure(
        self, function: Callable[..., Measured], entry: Measured, seconds: float | None = None, **options: Any
    ) -> Measured:
        """The entry with its numbers; a crash of the process, or what the function fails with, is said in it.

        Args:
            function: of a module, which is called there with the entry and the options.
            entry: what it is of. What it has already stays.
            seconds: after which the process is killed; ``None`` waits for as long as it takes.
            **options: as JSON can say them; ``threads`` is of torch's operators, and set before the function is called.

        Raises:
            TooLong: the process was killed.
        """
        return self.measure_with(function, entry, seconds, **options)[0]

    def measure_with(
        self, function: Callable[..., Any], entry: Measured, seconds: float | None = None, **options: Any
    ) -> tuple[Measured, Any]:
        """The same of a function that returns something besides the entry; ``None`` where it failed."""
        request = {
            "function": [function.__module__, function.__qualname__],
            "class": [type(entry).__module__, type(entry).__qualname__],
            "entry": asdict(entry),
            "options": options,
        }
        try:
            found = self._worker.ask(request, seconds)
        except Ended as error:
            return replace(entry, failure=str(error)), None
        return type(entry).of(found["entry"]), found["more"]

    def end(self) -> None:
        """Ends the process, if there is one."""
        self._worker.end()


def in_child(
    function: Callable[..., Measured],
    entry: Measured,
    environment: Mapping[str, str] = ENVIRONMENT,
    **options: Any,
) -> Measured:
    """What ``Child.measure`` gives, of a process for this entry alone."""
    with Child(environment) as child:
        return child.measure(function, entry, **options)


def here(function: Callable[..., Measured], entry: Measured, **options: Any) -> Measured:
    """The same in this process. What fails is said in the answer."""
    return here_with(function, entry, **options)[0]


def here_with(function: Callable[..., Any], entry: Measured, **options: Any) -> tuple[Measured, Any]:
    """What ``Child.measure_with`` gives, in this process."""
    try:
        found = function(entry, **options)
        return found if isinstance(found, tuple) else (found, None)
    except DoesNotApply as error:
        return replace(entry, does_not_apply=str(error)), None
    except Exception as error:  # whatever one entry fails with, others are to be measured
        return replace(entry, failure=reason(error)), None


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What this process says to a request."""
    import torch  # nothing else of this project needs it before a process is asked

    options = dict(request["options"])
    if "threads" in options:
        torch.set_num_threads(options.pop("threads"))
    entry = _named(*request["class"]).of(request["entry"])
    found, more = here_with(_named(*request["function"]), entry, **options)
    return {"entry": asdict(found), "more": more}


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    serve(answer, sys.stdin)
