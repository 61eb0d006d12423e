"""What a process holds after a model's forward, in processes of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bench.runner.memory import PLAIN, Memory, measure_step, measured_twice
from bench.suites.memory.activations.cases import made


def measure(name: str, levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures one of ``cases.MODELS``: untouched, and at each level."""
    return measured_twice(measure_here, [Memory(name, level) for level in (PLAIN, *levels)], threads=threads)


def measure_here(entry: Memory) -> Memory:
    """Measures one model at one level in this process."""
    case, _ = made(entry.model)
    return measure_step(entry, case.model, case.loss, case.loss, torch.device("cpu"))
