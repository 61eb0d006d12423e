"""Parts ``memory`` and ``grid``: the peak of a step of RoBERTa, each way in a process of its own.

The activation peak is the most memory during forward and backward, less what was there before, with ``.grad`` unset,
and less the gradients. On the CPU the kernel counts it: this needs a process with the allocator's setting, see
``bench.runner.process_memory``.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from bench.runner.process_memory import Counters, counters
from bench.suites.fewbit.results import GridCell, Peak, Sized
from bench.ways.roberta import ATTENTION, BITS, DROPOUT, RATIO, RATIOS, WAYS, Case, Exchange, Shape

BATCHES = {"cpu": 16, "cuda": 128}  # sequences; FewBit's table has 128
STEPS = 1  # that count: one is like another to a page or two
QUICK_BATCH = 4
QUICK_SHAPE = Shape(layers=2, vocabulary=1000)
GRID_BITS = (None, 1, 2, 3, 4)  # of GELU; None is the exact one

Measured = TypeVar("Measured", bound=Sized)


def peaks(shape: Shape, batch: int) -> list[Peak]:
    """Those of FewBit's ways, without numbers."""
    network = f"RoBERTa, {shape}, {ATTENTION} attention, dropout {DROPOUT:g}, float32"
    return [Peak(way, network, batch) for way in WAYS]


def cells(shape: Shape, batch: int, quick: bool) -> list[GridCell]:
    """Those of the grid, without numbers."""
    ratios = (None, RATIO) if quick else RATIOS
    bits = (None, BITS) if quick else GRID_BITS
    return [GridCell(one, ratio, grid_network(shape), batch) for ratio in ratios for one in bits]


def grid_network(shape: Shape) -> str:
    """A shape in words that tell it from others."""
    return f"{shape}, {shape.vocabulary:,} words"


def measure(
    entry: Measured, *, way: Mapping[str, Any], shape: Mapping[str, Any], batch: int, steps: int, device: str
) -> Measured:
    """Measures one way to train in this process.

    Args:
        entry: without numbers.
        way, shape: as ``dataclasses.asdict`` makes them of a ``Exchange`` and of the network's ``Shape``.
        batch: sequences of its input.
        steps: that count, after one that pays for caches.
        device: ``"cpu"`` or ``"cuda"``.
    """
    torch.manual_seed(0)
    case = Case(Shape(**shape), Exchange(**way), batch, torch.device(device))
    found = counters(torch.device(device))
    if isinstance(found, str):
        return replace(entry, not_measured=found)
    measured = [_step(case, found) for _ in range(1 + steps)][1:]
    kept, above, whole = (list(values) for values in zip(*measured, strict=True))
    gradients = sum(parameter.grad.nbytes for parameter in case.model.parameters() if parameter.grad is not None)
    return replace(entry, kept_bytes=kept, peak_bytes=above, raw_bytes=whole, gradient_bytes=gradients)


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
