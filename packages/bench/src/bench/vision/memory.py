"""Part ``memory``: what ResNet-50 keeps for backward, in a process of its own (``python -m bench.vision.memory``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from bench.memory import Memory, answer, in_child, saved_bytes, step_bytes
from bench.networks import Case, resnet50
from bench.process_memory import HEAP_ONLY
from integrations import qmodules

MODEL, BATCH = "resnet50", 16

_MODULE = "bench.vision.memory"  # of the child process; this file's name for itself is __main__ there
_WARM_UP = 3  # steps; layers have bits of their own from the second on


def measure(levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures ResNet-50 with torch's own layers (``"L0"``) and at each level, live bytes and peaks in two processes.

    ``stored_bytes`` are those that hooks on saved tensors see; live bytes are the allocator's.

    Raises:
        BenchError: the child process failed, as it does where timm is missing.
    """
    request = {"levels": ["L0", *levels], "threads": threads}
    exact = in_child(_MODULE, request, HEAP_ONLY)
    return [
        replace(one, peak_bytes=other.peak_bytes) for one, other in zip(exact, in_child(_MODULE, request), strict=True)
    ]


def measure_here(levels: Sequence[str], case: Case) -> list[Memory]:
    """Measures a model in this process: as it is, and at each of ``levels``, the first of which is ``"L0"``."""
    found: list[Memory] = []
    for level in levels:
        if level != "L0":
            qmodules.QModule(case.model, level)
        for _ in range(_WARM_UP):
            case.loss().backward()
        live, peak, reason = step_bytes(case.model, case.loss, case.loss, torch.device("cpu"))
        kept = saved_bytes(case.model, case.loss)
        original, stored = (kept, None) if level == "L0" else (found[0].original_bytes, kept)
        found.append(Memory(MODEL, level, live, peak, original, stored, reason))
        if level != "L0":
            qmodules.revert(case.model)
    return found


def _child(request: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(request)
    torch.set_num_threads(wanted["threads"])
    torch.manual_seed(0)
    answer(measure_here(wanted["levels"], resnet50(BATCH)))


if __name__ == "__main__":
    _child(sys.argv[1])
