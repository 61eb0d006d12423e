"""``Repeated``: a call that is repeated on tensors like its arguments, and what it takes on a CPU.

The module imports torch and nothing of this package. It is also run as a script, in a process of its own whose C
library gives freed memory back at once. The script reads a pickled ``setting()`` and packed calls, and writes a line
for each call that could be run: ``ANSWER``, the call's place, its seconds and its scratch in bytes.
"""

from __future__ import annotations

import copy
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

from integrations._utils.torch_internals import (
    AutoDispatchBelowAutograd,
    DisableAutocast,
    get_mkldnn_enabled,
    set_mkldnn_enabled,
)

ANSWER = "cost of call "

MMAP_THRESHOLD = 65536
"""From this size on, in bytes, a block is mapped by itself and unmapped when it is freed."""

_MOST = 32 << 20  # the largest threshold that glibc takes
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RUNS, _LONG = 5, 0.01  # at most so many timed runs, until so many seconds are over
_LOOKS = 2  # times a call's memory is looked at: the kernel counts pages by processor and adds them up a little later


class Repeated:
    """A call that can be run any number of times.

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
        """Runs the call below autograd and autocast, where it was seen."""
        with torch.set_grad_enabled(self._grad), AutoDispatchBelowAutograd(), DisableAutocast():
            return self._function(*self._args, **self._kwargs)

    def argument(self, place: int) -> Any:
        """The positional argument at a place."""
        return self._args[place]

    def with_argument(self, place: int, value: Any) -> Repeated:
        """The call with another positional argument, on the same tensors."""
        other = copy.copy(self)
        other._args = (*self._args[:place], value, *self._args[place + 1 :])
        return other

    @property
    def device(self) -> torch.device:
        """The device on which the call runs: that of its first tensor that is not a number on the CPU, or the one that
        it is asked for."""
        found = [storage.device for storage in _storages((self._args, self._kwargs.values()))]
        asked = torch.device(self._kwargs.get("device") or "cpu")
        return next((device for device in [*found, asked] if device.type != "cpu"), torch.device("cpu"))

    def new_storages(self, out: Any) -> list[int]:
        """The bytes of each of the results' storages that is not an argument's."""
        given = {storage._cdata for storage in _storages((self._args, self._kwargs.values()))}
        found = {storage._cdata: storage.nbytes() for storage in _storages((out,))}
        return [nbytes for key, nbytes in found.items() if key not in given]

    def new_bytes(self, out: Any) -> int:
        """Bytes of the results' storages that are not the arguments' storages."""
        return sum(self.new_storages(out))

    def seconds(self, clock: Callable[[], float]) -> float:
        """The least seconds of several runs."""
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
        """A tensor. Its elements are zeros if they may be indices, and 0.5 otherwise."""
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
    """The settings of this process by which kernels are chosen, besides their arguments."""
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


def count_scratch(repeated: Repeated) -> int:
    """Bytes that become resident during a call beyond its results; 0 where the system does not tell."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
        repeated()  # fills caches
        return max(0, min(_above(repeated, trim) for _ in range(_LOOKS)))
    except (OSError, AttributeError):
        return 0


def _above(repeated: Repeated, trim: Callable[[int], int]) -> int:
    trim(0)
    _CLEAR_REFS.write_text("5")  # resets the peak
    before = _resident("VmRSS")
    out = repeated()
    return _resident("VmHWM") - before - repeated.new_bytes(out)


def measure_seconds(repeated: Repeated) -> float:
    """The time of a call that gets the memory of the one before, as in a process that has run for a while."""
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return repeated.seconds(time.perf_counter)
    trim_threshold, mmap_threshold = -1, -3  # the numbers of these options in malloc.h
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
    """Answers call by call, so that a call that ends the process loses no earlier answer."""
    given, calls = pickle.load(sys.stdin.buffer)
    _put(given)
    gc.disable()
    for place, packed in enumerate(calls):
        try:
            repeated = Repeated(packed)
            scratch = count_scratch(repeated)
            print(f"{ANSWER}{place} {measure_seconds(repeated)!r} {scratch}", flush=True)
        except Exception:  # the call cannot be run with tensors made up for it: its cost is modelled
            continue


if __name__ == "__main__":
    main()
