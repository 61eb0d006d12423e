"""Part ``memory``: the peak of a step of RoBERTa, each way in a process of its own (``python -m bench.fewbit.memory``).

The activation peak is the most memory during forward and backward, less what was there before, with ``.grad`` unset,
and less the gradients. On the CPU the kernel counts it: this needs a process with the allocator's setting, see
``bench.process_memory``.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from bench.fewbit.results import Peak
from bench.fewbit.roberta import WAYS, Case, Shape, Way
from bench.memory import child_answer
from bench.process_memory import Counters, counters

BATCHES = {"cpu": 16, "cuda": 128}  # sequences; FewBit's table has 128
STEPS = 1  # that count: one is like another to a page or two
QUICK_BATCH = 4
QUICK_SHAPE = Shape(layers=2, vocabulary=1000)

MODULE = "bench.fewbit.memory"  # of the child process; this file's name for itself is __main__ there


def measure(
    shape: Shape, batch: int, steps: int, threads: int, device: torch.device, advance: Callable[[str], None]
) -> list[Peak]:
    """Measures every one of ``WAYS``.

    Args:
        shape, batch: of the network and its input.
        steps: that count, after one that pays for caches.
        threads: of torch's operators.
        device: whose memory it is.
        advance: called with what was measured.

    Raises:
        BenchError: a child process failed, as it does where transformers is missing.
    """
    found = []
    for name, way in WAYS.items():
        found.append(Peak(**child_answer(MODULE, request(name, way, shape, batch, steps, threads, device))))
        advance(f"memory, {name}")
    return found


def request(
    name: str, way: Way, shape: Shape, batch: int, steps: int, threads: int, device: torch.device
) -> dict[str, Any]:
    """What ``MODULE`` is asked for, to measure one way to train; the answer is the fields of a ``Peak``."""
    return {
        "name": name,
        "way": asdict(way),
        "shape": asdict(shape),
        "batch": batch,
        "steps": steps,
        "threads": threads,
        "device": device.type,
    }


def measure_here(name: str, way: Way, shape: Shape, batch: int, steps: int, device: torch.device) -> Peak:
    """Measures one way to train in this process."""
    torch.manual_seed(0)
    case = Case(shape, way, batch, device)
    found = counters(device)
    if isinstance(found, str):
        return Peak(name, not_measured=found)
    peaks = [_step(case, found) for _ in range(1 + steps)][1:]
    kept, above, whole = (list(values) for values in zip(*peaks, strict=True))
    gradients = sum(parameter.grad.nbytes for parameter in case.model.parameters() if parameter.grad is not None)
    return Peak(name, kept, above, whole, gradients)


def _step(case: Case, count: Counters) -> tuple[int, int, int]:
    """Bytes of one step: live after the forward, at the peak more than before, and at the peak in all."""
    case.model.zero_grad(set_to_none=True)
    gc.collect()
    live, before = count.live(), count.start_peak()
    loss = case.loss()
    kept = count.live() - live
    loss.backward()
    peak = count.peak()
    return kept, peak - before, peak


def _child(text: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(text)
    torch.set_num_threads(wanted["threads"])
    shape, device = Shape(**wanted["shape"]), torch.device(wanted["device"])
    way = Way(**wanted["way"])
    print(json.dumps(asdict(measure_here(wanted["name"], way, shape, wanted["batch"], wanted["steps"], device))))


if __name__ == "__main__":
    _child(sys.argv[1])
