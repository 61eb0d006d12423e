"""Contenders take turns: whatever else the machine does hits all of them, and ratios compare neighbours in time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

Action = Callable[[], object]


def in_turn(actions: Sequence[Action], rounds: int, device: torch.device, calls: int = 1) -> list[list[float]]:
    """Times each action once a round, after one round that is not counted.

    Args:
        actions: what to time; what one returns is freed outside of its time where ``calls`` is 1.
        rounds: that are counted.
        device: where they work. On CUDA the time is the GPU's, between two events.
        calls: of an action in a row, for those that take too little time to be measured alone.

    Returns:
        Seconds a call, by action and round.
    """
    measure = _on_gpu if device.type == "cuda" else _on_cpu
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(1 + rounds):
        for action, seconds in zip(actions, times, strict=True):
            seconds.append(measure(action, calls))
    return [seconds[1:] for seconds in times]


def median_ratio(times: Sequence[float], references: Sequence[float]) -> float:
    """Median over rounds of one's time over the other's in the same round."""
    return statistics.median(a / b for a, b in zip(times, references, strict=True))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch's operators use ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_cpu(action: Action, calls: int) -> float:
    if calls == 1:
        start = time.perf_counter()
        result = action()
        seconds = time.perf_counter() - start
        del result  # freed outside of the time: a copy_ frees nothing
        return seconds
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls


def _on_gpu(action: Action, calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        result = action()
    end.record()
    torch.cuda.synchronize()
    del result
    return float(start.elapsed_time(end)) / 1000 / calls
