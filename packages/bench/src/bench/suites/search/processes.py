"""The processes that trials are made in (``python -m bench.suites.search.processes``).

On the CPU one process loads the libraries, takes a few tiny steps in each way that is asked for, and forks for each
trial: what the libraries take is there before the limit is set, and a trial costs no second to begin. On CUDA, whose
contexts do not survive a fork, and where they take some ten seconds to begin, trials follow one another in a process:
the allocator forgets what it has cached, and its limit is set anew. What fails of anything else than the allocator's
refusal, or leaves memory in use, has been the last trial of its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Self

import torch

from bench.runner import child as workers
from bench.runner.child import Ended, Worker
from bench.runner.process_memory import ENVIRONMENT, release_cached
from bench.suites.search.dimensions import dimensions
from bench.suites.search.entries import Trial
from bench.suites.search.trial import Request, prepare, says_out_of_memory, take
from bench.units import MIB

_REFUSED = "out of memory"  # the words of torch's allocator, and of actcore's operators, which ask it
_LEFT = 16 * MIB  # that a trial on CUDA may leave in use: a thousandth of the limit

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h

_MODULE = "bench.suites.search.processes"  # of the child process; this file's name for itself is __main__ there
_MODULES = {  # that models are made of, by family
    "resnet": "timm.models.resnet",
    "swin": "timm.models.swin_transformer",
    "bert": "transformers.models.bert.modeling_bert",
    "gcn": "torch_geometric.nn",
    "llama": "transformers.models.llama.modeling_llama",
}


class Trials:
    """Makes trials in processes, one at a time; the context ends them."""

    def __init__(self, module: str = _MODULE) -> None:
        self._module = module
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.end()

    def take(self, request: Request, seconds: float | None = None) -> Trial:
        """A trial. That its process ended, and whether for want of memory, is said in the answer.

        Args:
            request: what to try.
            seconds: after which its process is killed; ``None``: never.

        Raises:
            TooLong: it was.
        """
        worker = self._worker(request.device)
        try:
            answer = worker.ask(asdict(request), seconds)
        except Ended as error:
            return ended(request.value, error.code, error.errors)
        if not answer["again"]:
            worker.end()
        return Trial(**answer["trial"])

    def _worker(self, device: str) -> Worker:
        # Without a GPU in sight, autograd starts no threads, after which a process could not fork.
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        return self._workers.setdefault(device, Worker(self._module, device, environment={**ENVIRONMENT, **hidden}))


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
    """Answers requests, one line each, with a line each: the trial, and whether this process can make another."""
    torch.set_num_threads(1)  # what is forked has one: others would not survive it
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # as convolutions are there: a BERT's trial takes seconds then
    known = dimensions(device)
    prepared: set[tuple[str, str]] = set()

    def answer(content: Mapping[str, Any]) -> dict[str, Any]:
        request = Request(**content)
        family = known[request.dimension].family
        with contextlib.suppress(ImportError, RuntimeError):  # of torchvision beside another torch; the trial says so
            importlib.import_module(_MODULES[family])
        if (request.way, family) not in prepared:
            prepare(request.way, device, family)
            prepared.add((request.way, family))
        trial = _forked(request) if device == "cpu" else take(request)
        return {"trial": asdict(trial), "again": device == "cpu" or _is_clean(trial)}

    workers.serve(answer, requests)


def _is_clean(trial: Trial) -> bool:
    """Whether a trial on CUDA left nothing that the next one in this process would be charged with.

    The allocator's refusal leaves the device as it was, whether torch or actcore says so. Of all else that fails,
    libraries' refusals among it, some leave a device that takes no more work.
    """
    if trial.failure and _REFUSED not in trial.failure:
        return False
    release_cached()
    return torch.cuda.memory_allocated() <= _LEFT


def _forked(request: Request) -> Trial:
    """A trial in a fork of this process."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            _end_with_parent()
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


def _end_with_parent() -> None:
    """The kernel kills this process when the one that forked it ends, as where a trial took too long."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


if __name__ == "__main__":
    serve(sys.argv[1], iter(sys.stdin))
