"""Processes that answer requests, a line of JSON each, so that what a start costs is paid once for many of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import IO, Any, Self

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            raise TooLong(f"it was not done in {seconds:.0f} seconds")
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
