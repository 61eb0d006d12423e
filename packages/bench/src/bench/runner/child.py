"""Processes that measure: each answers requests, a line of JSON each."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import IO, Any, Self, TypeVar

from bench.errors import DoesNotApply, reason
from bench.results.entry import Entry
from bench.runner.process_memory import ENVIRONMENT

_FAREWELL = 20.0  # seconds that a process has to end by itself


class Ended(Exception):
    """A process ended without an answer.

    Args:
        code: with which it ended, negative for a signal.
        errors: what it wrote to stderr.
    """

    def __init__(self, code: int, errors: str) -> None:
        self.code = code
        self.errors = errors
        last = (errors.strip().splitlines() or ["it wrote nothing"])[-1]
        super().__init__(f"the process ended with code {code}: {last[:200]}")


class TooLong(Exception):
    """A process had no answer in the time that it was given, and was killed."""


class Worker:
    """A process of ``python -m MODULE ARGUMENTS`` that is started when it is first asked, and again after it ended.

    Args:
        module: which calls ``serve``.
        *arguments: of its command line.
        environment: that it has besides this process's own, the allocator's setting among it.
    """

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self._command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def ask(self, request: Mapping[str, Any], seconds: float | None = None) -> Any:
        """The answer to a request.

        Args:
            request: as JSON can say it.
            seconds: after which the process is killed; ``None`` waits for as long as it takes.

        Raises:
            Ended: the process ended without an answer.
            TooLong: it was killed.
        """
        process, errors = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # of a process that ended already; there is no answer then
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        # Each answer is a line, and the one before was read to its end: nothing waits in this process's buffer.
        if seconds is not None and not select.select([process.stdout], [], [], max(0.0, seconds))[0]:
            process.kill()
            self.end()
            raise TooLong(f"it did not finish in {seconds:.0f} seconds")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            errors.seek(0)
            self.end()
            raise Ended(code, errors.read())
        return json.loads(line)

    def end(self) -> None:
        """Ends the process, if there is one; the next request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # it ends where there are no more requests
        try:
            process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _started(self) -> tuple[subprocess.Popen[str], IO[str]]:
        if self._process is None or self._errors is None:
            self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the process
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        return self._process, self._errors


def serve(answer: Callable[[Any], Mapping[str, Any]], requests: Iterable[str]) -> None:
    """Answers each line of requests with a line. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in requests:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


Measured = TypeVar("Measured", bound=Entry)

_MODULE = "bench.runner.child"


class Child(Worker):
    """A process that measures entries; it is started when it is first asked, and again after it ended.

    Args:
        environment: that it has besides this process's own, the allocator's setting among it.
    """

    def __init__(self, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        super().__init__(_MODULE, environment=environment)

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
            found = self.ask(request, seconds)
        except Ended as error:
            return replace(entry, failure=str(error)), None
        return type(entry).of(found["entry"]), found["more"]


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
