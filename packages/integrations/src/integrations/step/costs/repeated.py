"""``Repeated``: a call repeated, on tensors that look like its arguments; and what it takes on a CPU.

This imports torch and nothing of this package, and is run as a script, too: a process of its own, which has the C
library give back at once what is freed, and is to be quick. It reads a pickled ``setting()`` and packed calls, and
writes a line for each that could be made: ``ANSWER``, its place, its seconds and its scratch in bytes.
"""

from __future__ import annotations

import ctypes
import gc
import io
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from integrations._torch import AutoDispatchBelowAutograd, DisableAutocast, get_mkldnn_enabled, set_mkldnn_enabled

ANSWER = "cost of call "

MMAP_THRESHOLD = 65536
"""Bytes from which a block is mapped for itself, and unmapped when it is freed."""

_MOST = 32 << 20  # the largest that there is
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RUNS, _LONG = 5, 0.01  # of timing: at most, and the seconds that are enough
_LOOKS = 2  # at the memory of a call: the kernel counts pages by processor, and adds them up a little later


class Repeated:
    """A call that can be made as often as one likes.

    Args:
        packed: what ``Call.packed`` returned.

    Raises:
        Exception: there is no such operator here, or there are no such tensors.
    """

    def __init__(self, packed: bytes) -> None:
        found, self._args, self._kwargs, self._grad = _Unpacker(io.BytesIO(packed)).load()
        library, name, overload = found.split(".")
        self._function = getattr(getattr(getattr(torch.ops, library), name), overload)

    def __call__(self) -> Any:
        """Makes it, below autograd and autocast, where it was seen."""
        with torch.set_grad_enabled(self._grad), AutoDispatchBelowAutograd(), DisableAutocast():
            return self._function(*self._args, **self._kwargs)

    @property
    def device(self) -> torch.device:
        """Where it runs: the device of its first tensor that is not a number on the CPU, or the one that it is asked
        for."""
        found = [storage.device for storage in _storages((self._args, self._kwargs.values()))]
        asked = torch.device(self._kwargs.get("device") or "cpu")
        return next((device for device in [*found, asked] if device.type != "cpu"), torch.device("cpu"))

    def new_bytes(self, out: Any) -> int:
        """Bytes of the results' storages that are not the arguments'."""
        given = {storage._cdata for storage in _storages((self._args, self._kwargs.values()))}
        found = {storage._cdata: storage.nbytes() for storage in _storages((out,))}
        return sum(nbytes for key, nbytes in found.items() if key not in given)

    def seconds(self, clock: Callable[[], float]) -> float:
        """The least of some runs."""
        least, start = float("inf"), clock()
        now = start
        for _ in range(_RUNS):
            before = now
            self()
            now = clock()
            least = min(least, now - before)
            if now - start > _LONG:
                break
        return least


class _Unpacker(pickle.Unpickler):
    def persistent_load(self, entry: Any) -> Tensor:
        """A tensor. Its numbers are zeros where they may be places in others, and a half elsewhere."""
        size, stride, offset, dtype, device, nbytes = entry
        value = 0.5 if dtype.is_floating_point or dtype.is_complex else 0
        memory = torch.full((-(-nbytes // dtype.itemsize),), value, dtype=dtype, device=device)
        return memory.as_strided(size, stride, offset)


def _storages(given: Any) -> Iterator[torch.UntypedStorage]:
    for item in given:
        if isinstance(item, Tensor):
            if item.layout is torch.strided:
                yield item.untyped_storage()
        elif not isinstance(item, (str, bytes)) and hasattr(item, "__iter__"):
            yield from _storages(item)


def setting() -> dict[str, Any]:
    """What kernels are chosen by in this process, besides their arguments."""
    return {
        "threads": torch.get_num_threads(),
        "mkldnn": get_mkldnn_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _put(given: dict[str, Any]) -> None:
    torch.set_num_threads(given["threads"])
    set_mkldnn_enabled(given["mkldnn"])
    torch.set_float32_matmul_precision(given["precision"])
    torch.use_deterministic_algorithms(given["deterministic"], warn_only=True)


def scratch_of(repeated: Repeated) -> int:
    """Bytes that become resident during a call beyond its results; 0 where the system does not tell."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
        repeated()  # pays for caches
        return max(0, min(_above(repeated, trim) for _ in range(_LOOKS)))
    except (OSError, AttributeError):
        return 0


def _above(repeated: Repeated, trim: Callable[[int], int]) -> int:
    trim(0)
    _CLEAR_REFS.write_text("5")  # forgets the peak so far
    before = _resident("VmRSS")
    out = repeated()
    return _resident("VmHWM") - before - repeated.new_bytes(out)


def seconds_of(repeated: Repeated) -> float:
    """The time of a call that gets the memory of the one before, as in a process that has run for a while."""
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return repeated.seconds(time.perf_counter)
    trim_threshold, mmap_threshold = -1, -3  # as malloc.h numbers them
    for option in (trim_threshold, mmap_threshold):
        mallopt(option, _MOST)
    try:
        return repeated.seconds(time.perf_counter)
    finally:
        for option in (trim_threshold, mmap_threshold):
            mallopt(option, MMAP_THRESHOLD)


def _resident(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024  # the kernel writes kB and means KiB
    raise OSError(f"{_STATUS} has no line {key}")


def main() -> None:
    """Answers, call by call: what ends the process ends it after what it has found."""
    given, calls = pickle.load(sys.stdin.buffer)
    _put(given)
    gc.disable()
    for place, packed in enumerate(calls):
        try:
            repeated = Repeated(packed)
            scratch = scratch_of(repeated)
            print(f"{ANSWER}{place} {seconds_of(repeated)!r} {scratch}", flush=True)
        except Exception:  # as modelled: it cannot be called with what was made up for it
            continue


if __name__ == "__main__":
    main()
