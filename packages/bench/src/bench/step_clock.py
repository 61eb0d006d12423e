"""Whole training steps take turns, as ``kernels.clock`` has operators take turns, with Python's part in their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from bench.kernels.clock import in_turn

_IN_A_ROW = 2


def steps_in_turn(steps: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[list[float]]:
    """Times each step once a round, after one round that is not counted.

    The clock of operators takes Python's part out of their time. A step whose kernels wait for Python takes the time
    of both, though, and that is what people wait for. So on CUDA it is the clock's time of some steps in a row, until
    the device is done: between them the host runs ahead, as it does in training.

    Args:
        steps: what to time.
        rounds: that are counted.
        device: where they work.

    Returns:
        Seconds a step, by step and round.
    """
    if device.type != "cuda":
        return in_turn(steps, rounds, device)
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(1 + rounds):
        for step, seconds in zip(steps, times, strict=True):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(_IN_A_ROW):
                step()
            torch.cuda.synchronize(device)
            seconds.append((time.perf_counter() - start) / _IN_A_ROW)
    return [seconds[1:] for seconds in times]
