"""Memory of this process, as the C library and the kernel count it, or as CUDA's allocator does. Never estimated.

On Linux with glibc: live bytes are ``mallinfo2``'s ``uordblks + hblkhd`` (heap blocks in use and mapped blocks); the
peak is ``VmHWM`` of ``/proc/self/status``, reset by writing ``5`` to ``/proc/self/clear_refs``. The peak means
something only in a process that was started with ``ENVIRONMENT``, so that freed blocks go back to the kernel at once.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # bytes from which a block is mapped for itself
ENVIRONMENT = {_THRESHOLD: os.environ.get(_THRESHOLD, "65536")}
"""Smaller blocks are on the heap, which keeps what is free between others: with many of them the environment may name
less, down to a page."""


HEAP_ONLY = {**ENVIRONMENT, "MALLOC_MMAP_MAX_": "0"}
"""For live bytes alone: no block is mapped, so that none is counted in whole pages of 4 KiB. Those pages are a part of
what a process takes, but not of what it stores, and few large blocks have fewer of them than many small ones. The peak
means nothing then: what is freed does not go back to the kernel."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Counters(Protocol):
    """Two counters of bytes."""

    def live(self) -> int:
        """Bytes that are allocated now."""
        ...

    def start_peak(self) -> int:
        """Forgets the peak so far; returns the bytes that it starts from."""
        ...

    def peak(self) -> int:
        """The most bytes since ``start_peak``."""
        ...


class CudaCounters:
    """The caching allocator's counters of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def live(self) -> int:
        """Bytes in tensors now."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.memory_allocated(self._device)

    def start_peak(self) -> int:
        """Forgets the peak so far; returns the bytes in tensors."""
        torch.cuda.reset_peak_memory_stats(self._device)
        return self.live()

    def peak(self) -> int:
        """The most bytes in tensors since ``start_peak``."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)


@dataclass(frozen=True)
class AllocatorPeaks:
    """The peaks of CUDA's caching allocator over some work, which began with an empty cache.

    Attributes:
        before: bytes in tensors before.
        requested: bytes that tensors asked for.
        allocated: of blocks in tensors, as the allocator rounds them.
        active: of those that nobody else may use, as what another stream still reads.
        reserved: that the allocator has taken of the device.
        pinned: of pinned host memory in use; ``None`` where torch does not count it.
    """

    before: int
    requested: int
    allocated: int
    active: int
    reserved: int
    pinned: int | None


def allocator_peaks(action: Callable[[], object], device: torch.device) -> AllocatorPeaks:
    """Those of an action. Nothing waits for the device while it runs: a host that is ahead is what is to be seen."""
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    pinned = hasattr(torch.cuda, "host_memory_stats")
    if pinned:
        torch.cuda.reset_peak_host_memory_stats()
    before = torch.cuda.memory_allocated(device)
    action()
    torch.cuda.synchronize(device)
    found = torch.cuda.memory_stats(device)
    return AllocatorPeaks(
        before=before,
        requested=found["requested_bytes.all.peak"],
        allocated=found["allocated_bytes.all.peak"],
        active=found["active_bytes.all.peak"],
        reserved=found["reserved_bytes.all.peak"],
        pinned=torch.cuda.host_memory_stats().get("active_bytes.peak") if pinned else None,
    )


def release_cached() -> int:
    """Gives everything that nothing uses back to the device; returns the bytes of cuBLAS's workspaces among it."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    after = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache()  # of pinned memory, which the allocator takes in powers of two
    return before - after


class ProcessCounters:
    """glibc's and the Linux kernel's counters of this process."""

    def __init__(self) -> None:
        self._mallinfo2 = ctypes.CDLL(None).mallinfo2
        self._mallinfo2.restype = _Mallinfo2
        self._trim = ctypes.CDLL(None).malloc_trim

    def live(self) -> int:
        """Bytes in the C library's blocks that are in use."""
        info = self._mallinfo2()
        return int(info.uordblks + info.hblkhd)

    def start_peak(self) -> int:
        """Gives free memory back, forgets the peak so far; returns the resident bytes."""
        self._trim(0)
        _CLEAR_REFS.write_text("5")
        return _status_bytes("VmRSS")

    def peak(self) -> int:
        """The most resident bytes since ``start_peak``."""
        return _status_bytes("VmHWM")


class _Mallinfo2(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def counters(device: torch.device) -> Counters | str:
    """The counters for a device's memory, or the reason why there are none."""
    if device.type == "cuda":
        return CudaCounters(device)
    if platform.system() != "Linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return f"needs Linux with glibc 2.33 or later, got {platform.system()} {' '.join(platform.libc_ver())}".strip()
    if not os.access(_CLEAR_REFS, os.W_OK) or "VmHWM" not in _STATUS.read_text():
        return "the kernel does not let a process reset its peak (/proc/self/clear_refs)"
    wrong = {name: os.environ.get(name) for name, value in ENVIRONMENT.items() if os.environ.get(name) != value}
    if wrong:
        return f"the process must be started with {' '.join(f'{name}={ENVIRONMENT[name]}' for name in wrong)}"
    return ProcessCounters()


def limit_allocation(nbytes: int) -> None:
    """Lets this process allocate so many bytes more: what is too large then fails, and ends nothing beside it.

    Where there is no such limit, as outside of Linux, it does nothing.
    """
    if platform.system() == "Linux":
        import resource  # not on every system

        most = _status_bytes("VmData") + nbytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024  # the kernel writes kB and means KiB
    raise OSError(f"{_STATUS} has no line {key}")
