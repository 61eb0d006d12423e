"""What a step takes of a GPU and of the processor beside it: ``results.Figures``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from bench.errors import reason
from bench.runner.clock import steps_in_turn
from bench.runner.memory import live_bytes
from bench.runner.process_memory import Counters, allocator_peaks, release_cached
from bench.suites.memory.systems.entries import Figures

_IN_A_ROW = 3  # steps between which nothing waits for the device
_REPLAYS = 5  # rounds of what a CUDA graph replays

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel")  # and with what follows: ExC, Ex

_TO_AND_FRO = ("Memcpy HtoD", "Memcpy DtoH")

Span = tuple[float, float]


def figures(step: Callable[[], Tensor], whole: Callable[[], object], count: Counters, device: torch.device) -> Figures:
    """All but what the profiler tells.

    Args:
        step: a forward, down to the loss; gradients are there, to which its backward adds.
        whole: a step as it is timed.
        count: counters of the device's memory.
        device: of the model.
    """

    def some_steps() -> None:
        for _ in range(_IN_A_ROW):
            step().backward()

    host, cpu = _host_times(whole, device)
    found = Figures(live_bytes(step, count), host, cpu)
    if device.type != "cuda":
        return found
    peaks = allocator_peaks(some_steps, device)
    return replace(
        found,
        before_bytes=peaks.before,
        requested_bytes=peaks.requested,
        allocated_bytes=peaks.allocated,
        active_bytes=peaks.active,
        reserved_bytes=peaks.reserved,
        pinned_bytes=peaks.pinned,
        blas_bytes=release_cached(),
    )


def profiled(found: Figures, whole: Callable[[], object], device: torch.device) -> Figures:
    """Figures with what the profiler tells of a step, or why it does not."""
    cuda = device.type == "cuda"
    try:
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as record:
            whole()
            _wait(device)
        told = trace(record.events() or ())
    except Exception as error:  # a profiler that does not run costs no cell
        return replace(found, not_profiled=reason(error))
    if cuda and not told.kernels:
        return replace(found, not_profiled="the profiler has seen no kernel")
    copies, busy = _union(told.copies), _union(told.kernels)
    copied = _length(copies)
    return replace(
        found,
        launches=told.launches,
        busy_seconds=_length(busy),
        copy_seconds=copied,
        hidden=_overlap(copies, busy) / copied if copied else None,
    )


def captured(found: Figures, step: Callable[[], Tensor], device: torch.device) -> Figures:
    """Figures with the times of steps that a CUDA graph replays, or why it has none: what is left of a step where the
    host is no hindrance.

    Args:
        found: the figures.
        step: a forward, down to the loss; gradients are there, to which its backward adds.
        device: of the model; elsewhere than on CUDA there is nothing to capture.
    """
    if device.type != "cuda":
        return found
    graph = torch.cuda.CUDAGraph()
    try:
        _warm_up_aside(step, device)
        with torch.cuda.graph(graph):
            step().backward()
        [seconds] = steps_in_turn([graph.replay], _REPLAYS, device)
    except Exception as error:  # what cannot be captured costs no cell
        return replace(found, not_captured=reason(error))
    finally:
        graph.reset()
    return replace(found, captured_seconds=seconds)


def _warm_up_aside(step: Callable[[], Tensor], device: torch.device) -> None:
    """Steps on a stream of their own, on which torch asks for what a capture is not to make."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_IN_A_ROW):
            step().backward()
    torch.cuda.current_stream(device).wait_stream(stream)


def with_workspaces(found: Figures, step: Callable[[], Tensor]) -> Figures:
    """Figures with the most that one operator of a plain step takes for itself."""
    with _Workspaces() as seen:
        step().backward()
    return replace(found, workspace_bytes=seen.most, workspace_of=seen.name)


class _Workspaces(TorchDispatchMode):
    """Reads the allocator's peak over each operator: what is above what there was before it and is after it, is gone
    again. The allocator counts on the host, so that nothing has to wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self.name = ""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = func(*args, **(kwargs or {}))
        own = torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())
        if own > self.most:
            self.most, self.name = own, str(func)
        return result


@dataclass(frozen=True)
class Trace:
    """What happened in a step, times in seconds.

    Attributes:
        launches: calls that launch a kernel.
        kernels: when the device computed: kernels, fills and copies within it.
        copies: when it copied from or to the host.
    """

    launches: int
    kernels: list[Span]
    copies: list[Span]


def trace(events: Iterable[Any]) -> Trace:
    """Of the profiler's events."""
    launches = 0
    kernels: list[Span] = []
    copies: list[Span] = []
    for event in events:
        if event.device_type != DeviceType.CUDA:
            launches += event.name.startswith(_LAUNCHES)
        elif not getattr(event, "is_user_annotation", False):
            span = event.time_range.start / 1e6, event.time_range.end / 1e6
            (copies if event.name.startswith(_TO_AND_FRO) else kernels).append(span)
    return Trace(launches, kernels, copies)


def _host_times(whole: Callable[[], object], device: torch.device) -> tuple[list[float], list[float]]:
    host, cpu = [], []
    for _ in range(_IN_A_ROW):
        _wait(device)
        began, used = time.perf_counter(), time.process_time()
        whole()
        host.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    _wait(device)
    return host, cpu


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans that do not overlap, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _length(spans: Sequence[Span]) -> float:
    return sum(end - start for start, end in spans)


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> float:
    """How long both are, of spans that do not overlap among themselves."""
    found, one, other = 0.0, 0, 0
    while one < len(some) and other < len(others):
        found += max(0.0, min(some[one][1], others[other][1]) - max(some[one][0], others[other][0]))
        if some[one][1] < others[other][1]:
            one += 1
        else:
            other += 1
    return found
