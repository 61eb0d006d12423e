"""Contenders take turns: whatever else the machine does hits all of them, and ratios compare neighbours in time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

THREADS = 2
"""Of torch's operators, where a command does not take as many as torch does by itself: what most figures here have."""

Action = Callable[[], object]

# Cycles that a GPU spins before what is timed: about a millisecond, in which Python enqueues some 50 calls. Where that
# was too short, four times as many, up to a quarter of a second.
_SPIN, _LONGEST_SPIN = 2_000_000, 512_000_000


def in_turn(actions: Sequence[Action], rounds: int, device: torch.device, calls: int = 1) -> list[list[float]]:
    """Times each action once a round, after one round that is not counted.

    Args:
        actions: what to time; what one returns is freed outside of its time where ``calls`` is 1.
        rounds: that are counted.
        device: where they work. On CUDA the time is the GPU's, between two events, and Python's is none of it.
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
    """Seconds of the GPU. On an idle one, the time between the events is that of Python's enqueueing where this takes
    longer: some 20 microseconds a call. So the GPU spins until all is enqueued.

    An action that waits for the GPU by itself outlasts every spin, and has Python's part in its time.
    """
    cycles = _SPIN
    while True:
        seconds, in_time = _behind_a_spin(action, calls, cycles)
        if in_time or cycles >= _LONGEST_SPIN:
            return seconds
        cycles *= 4


def _behind_a_spin(action: Action, calls: int, cycles: int) -> tuple[float, bool]:
    """Seconds a call, and whether the GPU was still spinning when the last call had been enqueued."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(cycles)
    start.record()
    for _ in range(calls):
        result = action()
    end.record()
    in_time = not start.query()
    torch.cuda.synchronize()
    del result
    return float(start.elapsed_time(end)) / 1000 / calls, in_time


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
