"""What a process holds after a model's forward, in a process of its own (``python -m bench.activations.memory``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from bench.activations.cases import made
from bench.memory import Memory, answer, in_child, measure_step
from bench.process_memory import HEAP_ONLY

_MODULE = "bench.activations.memory"  # of the child process; this file's name for itself is __main__ there


def measure(name: str, levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures one of ``cases.MODELS``: untouched, and at each level. Live bytes and peaks are those of two processes.

    Raises:
        BenchError: the child process failed.
    """
    request = {"model": name, "levels": [None, *levels], "threads": threads}
    exact = in_child(_MODULE, request, HEAP_ONLY)
    return [
        replace(one, peak_bytes=other.peak_bytes) for one, other in zip(exact, in_child(_MODULE, request), strict=True)
    ]


def measure_here(name: str, level: str | None) -> Memory:
    """Measures one model at one level in this process."""
    case, _ = made(name)
    return measure_step(name, level, case.model, case.loss, case.loss, torch.device("cpu"))


def _child(request: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(request)
    torch.set_num_threads(wanted["threads"])
    answer([measure_here(wanted["model"], level) for level in wanted["levels"]])


if __name__ == "__main__":
    _child(sys.argv[1])
