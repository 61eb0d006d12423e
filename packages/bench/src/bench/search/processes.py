"""The processes that trials are made in (``python -m bench.search.processes``).

On the CPU one process loads the libraries, takes a few tiny steps in each way that is asked for, and forks for each
trial: what the libraries take is there before the limit is set, and a trial costs no second to begin. On CUDA, whose
contexts do not survive a fork, each trial has a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from types import TracebackType
from typing import IO, Self

import torch

from bench.process_memory import ENVIRONMENT
from bench.search.dimensions import dimensions
from bench.search.results import Trial
from bench.search.trial import Request, prepare, says_out_of_memory, take

_MODULE = "bench.search.processes"  # of the child process; this file's name for itself is __main__ there
_MODULES = {  # that models are made of, by family
    "resnet": "timm.models.resnet",
    "swin": "timm.models.swin_transformer",
    "bert": "transformers.models.bert.modeling_bert",
    "gcn": "torch_geometric.nn",
}


class Trials:
    """Makes trials in processes, one at a time; the context ends them."""

    def __init__(self, module: str = _MODULE) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def take(self, request: Request) -> Trial:
        """A trial. That its process ended, and whether for want of memory, is said in the answer."""
        process, errors = self._started(request.device)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # of a process that ended already; there is no answer then
            process.stdin.write(json.dumps(asdict(request)) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            errors.seek(0)
            self._end()
            return ended(request.value, code, errors.read())
        if request.device != "cpu":
            self._end()
        return Trial(**json.loads(line))

    def _started(self, device: str) -> tuple[subprocess.Popen[str], IO[str]]:
        if self._process is None or self._errors is None:
            self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the process
            # Without a GPU in sight, autograd starts no threads, after which a process could not fork.
            hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", self._module, device],
                env={**os.environ, **ENVIRONMENT, **hidden},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        return self._process, self._errors

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # it ends where there are no more requests
            process.wait()
            process.stdout.close()


def ended(value: int, code: int, errors: str) -> Trial:
    """A trial whose process ended without an answer.

    Args:
        value: that was tried.
        code: with which the process ended, negative for a signal.
        errors: what it wrote to stderr.
    """
    last = (errors.strip().splitlines() or ["it wrote nothing"])[-1]
    # The kernel kills where the machine has no more; shells tell of signals as 128 and more.
    short = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "MemoryError" in errors or says_out_of_memory(errors)
    return Trial(value, failure=f"the process ended with code {code}: {last[:200]}", crashed=not short)


def serve(device: str, requests: Iterator[str]) -> None:
    """Answers requests, one line each, with a line each. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)  # what is forked has one: others would not survive it
    known = dimensions(device)
    prepared: set[str] = set()
    for line in requests:
        request = Request(**json.loads(line))
        with contextlib.suppress(ImportError, RuntimeError):  # of torchvision beside another torch; the trial says so
            importlib.import_module(_MODULES[known[request.dimension].family])
        if request.way not in prepared:
            prepare(request.way, device)
            prepared.add(request.way)
        trial = take(request) if device != "cpu" else _forked(request)
        print(json.dumps(asdict(trial)), file=answers, flush=True)


def _forked(request: Request) -> Trial:
    """A trial in a fork of this process."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            for stream in (sys.stdout.fileno(), sys.stderr.fileno()):
                os.dup2(errors.fileno(), stream)  # stdout is for answers
            code = 1
            try:
                os.write(writing, json.dumps(asdict(take(request))).encode())
                code = 0
            except MemoryError:  # with nothing left to say it with
                os.write(2, b"MemoryError\n")
            finally:
                os._exit(code)  # nothing of the process that it is a fork of is to be ended
        os.close(writing)
        with os.fdopen(reading) as answers:
            answer = answers.read()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and answer:
            return Trial(**json.loads(answer))
        errors.seek(0)
        return ended(request.value, code, errors.read())


if __name__ == "__main__":
    serve(sys.argv[1], iter(sys.stdin))
