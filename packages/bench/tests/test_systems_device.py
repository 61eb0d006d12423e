"""``Figures`` of a step: what the profiler, the allocator and a CUDA graph tell of it, without a GPU."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode

from bench.results.machine import Machine
from bench.runner import clock as step_clock
from bench.runner import process_memory
from bench.suites.memory.systems import device
from bench.suites.memory.systems.entries import Figures

MACHINE = Machine("a GPU", 2, "Linux", {"torch": "2.15.0"}, "0123", False, "python", "today")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def event(name, start, end, kind=DeviceType.CUDA, note=False):
    return SimpleNamespace(
        name=name,
        device_type=kind,
        time_range=SimpleNamespace(start=start, end=end),
        is_user_annotation=note,
    )


EVENTS = [
    event("aten::mm", 0, 50, DeviceType.CPU),
    event("cudaLaunchKernel", 1, 2, DeviceType.CPU),
    event("cudaLaunchKernelExC", 3, 4, DeviceType.CPU),
    event("cuLaunchKernelEx", 3, 4, DeviceType.CPU),
    event("cudaMemcpyAsync", 3, 4, DeviceType.CPU),
    event("a range of the user's", 0, 10**6, note=True),
    event("gemm", 100, 200),
    event("elementwise", 150, 250),  # beside the one before, on another stream
    event("Memcpy DtoD (Device -> Device)", 300, 320),
    event("Memcpy DtoH (Device -> Pinned)", 240, 310),  # 10 beside a kernel, and 10 beside a copy on the device
    event("Memcpy HtoD (Pinned -> Device)", 400, 430),
]


class Profiled:
    def __init__(self, events):
        self._events = events

    def __call__(self, activities):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *of):
        pass

    def events(self):
        return self._events


@pytest.fixture
def cuda(monkeypatch):
    """What of ``torch.cuda`` waits for a device or counts its memory; a list of what was called."""
    calls = []

    def called(name, result=None):
        return lambda *given: calls.append(name) or result

    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "reset_peak_host_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, called(name), raising=False)
    stats = {
        f"{name}_bytes.all.peak": size for size, name in enumerate(("requested", "allocated", "active", "reserved"))
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", called("memory_stats", stats))
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: {"active_bytes.peak": 7}, raising=False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", called("memory_allocated", 100))
    return calls


def test_what_the_profiler_tells(monkeypatch, cuda):
    monkeypatch.setattr(device, "profile", Profiled(EVENTS))
    found = device.profiled(Figures(), lambda: None, CUDA)
    assert found.launches == 3
    assert found.busy_seconds == pytest.approx((150 + 20) * 1e-6)
    assert found.copy_seconds == pytest.approx((70 + 30) * 1e-6)
    assert found.hidden == pytest.approx(20 / 100)
    assert not found.not_profiled


def test_a_profiler_that_sees_nothing_costs_no_cell(monkeypatch, cuda):
    monkeypatch.setattr(device, "profile", Profiled([]))
    assert "seen no kernel" in device.profiled(Figures(), lambda: None, CUDA).not_profiled

    def broken(activities):
        raise RuntimeError("CUPTI is not there")

    monkeypatch.setattr(device, "profile", broken)
    found = device.profiled(Figures(kept_bytes=1), lambda: None, CUDA)
    assert (found.kept_bytes, found.not_profiled) == (1, "RuntimeError: CUPTI is not there")


class Graph:
    """As ``torch.cuda.CUDAGraph``, whose capture is what runs in ``torch.cuda.graph``."""

    def __init__(self, calls):
        self.calls = calls

    def replay(self):
        self.calls.append("replay")

    def reset(self):
        self.calls.append("reset")


@pytest.fixture
def graphs(monkeypatch, cuda):
    """What a capture calls, beside ``cuda``."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda given, name=name: contextlib.nullcontext(cuda.append(name)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(cuda))
    return cuda


def test_a_captured_step_is_timed_by_its_replays(graphs):
    weight, steps = torch.ones((), requires_grad=True), []
    found = device.captured(Figures(kept_bytes=1), lambda: steps.append("graph" in graphs) or weight * 2, CUDA)
    assert steps == [False] * 3 + [True]
    assert len(found.captured_seconds) == 5
    assert graphs.count("replay") == 2 * (1 + 5)
    assert (found.kept_bytes, found.not_captured, graphs[-1]) == (1, "", "reset")


def test_a_step_that_cannot_be_captured_costs_no_cell(graphs):
    weight = torch.ones((), requires_grad=True)

    def step():
        if "graph" in graphs:
            raise RuntimeError("operation not permitted when stream is capturing")
        return weight * 2

    found = device.captured(Figures(kept_bytes=1), step, CUDA)
    assert found == Figures(kept_bytes=1, not_captured="RuntimeError: operation not permitted when stream is capturing")
    assert graphs[-1] == "reset"
    assert device.captured(Figures(), step, torch.device("cpu")) == Figures()


def test_peaks_of_the_allocator_are_of_steps_that_nothing_waits_between(cuda):
    found = process_memory.allocator_peaks(lambda: cuda.append("steps"), CUDA)
    assert (found.before, found.requested, found.allocated, found.active, found.reserved) == (100, 0, 1, 2, 3)
    assert found.pinned == 7
    assert cuda == [
        "synchronize",
        "empty_cache",  # so that what is reserved is of these steps
        "reset_peak_memory_stats",
        "reset_peak_host_memory_stats",
        "memory_allocated",
        "steps",
        "synchronize",
        "memory_stats",
    ]


def test_the_most_that_an_operator_has_for_itself(monkeypatch):
    now = {"bytes": 0, "peak": 0}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *of: now["bytes"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *of: now["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *of: now.update(peak=now["bytes"]))

    class Allocator(TorchDispatchMode):
        """A product takes 1000 bytes for itself and 64 that stay; all else takes 2000 that stay."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            product = func is torch.ops.aten.mm.default
            now["bytes"] += 64 if product else 2000
            now["peak"] = now["bytes"] + 1000 * product
            return func(*args, **(kwargs or {}))

    weight = nn.Parameter(torch.ones(3, 3))
    with Allocator():
        found = device.with_workspaces(Figures(), lambda: torch.mm(weight, weight).sum())
    assert (found.workspace_bytes, found.workspace_of) == (1000, "aten.mm.default")


def test_figures_on_cuda(monkeypatch, cuda, counted):
    left = iter((100, 132, 100))  # bytes in tensors: before the steps, and before and after cuBLAS's are released
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *of: next(left))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cuda.append("cuBLAS"), raising=False)
    weight = nn.Parameter(torch.ones(3))
    found = device.figures(lambda: weight.sum(), lambda: cuda.append("step"), counted, CUDA)
    assert (found.before_bytes, found.active_bytes, found.reserved_bytes, found.pinned_bytes) == (100, 2, 3, 7)
    assert found.blas_bytes == 32
    assert torch.equal(weight.grad, torch.full((3,), 3.0))  # three steps, which add to what is there
    # Nothing waits while a step is issued.
    assert cuda[:6] == ["synchronize", "step"] * 3


def test_the_time_of_a_step_has_python_s_part_on_cuda(monkeypatch, cuda):
    """Behind a spin of the GPU, as operators are timed, a step that waits for Python looked as quick as one that does
    not."""
    now = [0.0]

    def step(seconds):
        cuda.append("step")
        now[0] += seconds  # the host issues it, and nothing else takes time

    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])
    found = step_clock.steps_in_turn([lambda: step(1.0), lambda: step(3.0)], 2, CUDA)
    assert found == [[1.0, 1.0], [3.0, 3.0]]
    assert cuda == ["synchronize", "step", "step", "synchronize"] * 6  # the host runs ahead between two
