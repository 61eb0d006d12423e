"""Streams of noise inside compiled regions and replayed CUDA graphs: ``actcore::next_stream``, a counter that advances
there; and ``begin_regions``, for regions whose streams follow from the forward that they are in.

There, everything that Python computes is a constant of the first run. An operator that keeps its count to itself is
not: it runs every time, and on a GPU its count lies on the device, where a replay advances it, too.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from actcore._library import CPU_LIBRARY
from actcore.compiling import constant_when_traced
from actcore.noise import current_rank, stream_of

_CAPTURED = -1  # the key of the counter of what is captured by hand; new_key counts from 0

_counters: dict[tuple[int, torch.device], Tensor] = {}
_lock = threading.Lock()
_keys = itertools.count()


@constant_when_traced
def new_key(device: torch.device) -> int:
    """A counter of its own on ``device``, made now: one made while a CUDA graph is captured would be reset by every
    replay. Keys count from 0 in each process, so a program that runs again compiles to the same code."""
    key = next(_keys)
    with _disable_current_modes():  # those of a trace in progress, too
        _counter(key, device)
    return key


def in_cuda_graph() -> bool:
    """Return whether a CUDA graph is being captured on the current stream.

    Python code then runs once, and not in each replay.
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def replayable(stream: int, like: Tensor) -> int | Tensor:
    """Return the stream for rounding ``like``.

    It is the stream that Python has counted, or, while a CUDA graph is captured, the next one of a counter on the
    device, ``Int64[Tensor, "1"]``, which every replay advances.

    Raises:
        RuntimeError: nothing was stored on the device before the capture, so the counter does not exist yet.
    """
    if in_cuda_graph():
        counted: Tensor = torch.ops.actcore.next_stream(like.detach(), _CAPTURED)
        return counted
    is_new = like.is_cuda and (_CAPTURED, like.device) not in _counters
    if is_new and not isinstance(like, FakeTensor):  # a capture needs a counter that is there
        with _disable_current_modes():
            _counter(_CAPTURED, like.device)
    return stream


def first_stream(key: int) -> int:
    """The stream before the first that a counter gives; the ones after it follow one by one, modulo 2**64.

    Any two streams round independently, so a hash has to part only the counters of different keys and ranks.
    """
    stream: int = stream_of(f"next_stream\0{key}", 0, current_rank())
    return stream - (1 << 64) if stream >= 1 << 63 else stream


def _counter(key: int, device: torch.device) -> Tensor:
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with _lock:
        found = _counters.get((key, device))
        if found is None:
            if device.type == "cuda" and in_cuda_graph():
                raise RuntimeError(
                    f"actcore::next_stream: key={key} is first used while a CUDA graph is captured, so every replay "
                    "would get the same noise; run one step before the capture"
                )
            found = _made(first_stream(key), device)
            _counters[key, device] = found
        return found


def _made(first: int, device: torch.device) -> Tensor:
    """A counter that stands before its first stream."""
    if device.type != "cuda":
        return torch.full((1,), first, dtype=torch.int64, device=device)
    # By a thread of its own: before a compiled region is captured, torch lets what this thread allocates come from the
    # memory of the graph to be, and raises where anything of that outlives the step.
    with ThreadPoolExecutor(1) as other:
        return other.submit(_made_on_gpu, first, device).result()


def _made_on_gpu(first: int, device: torch.device) -> Tensor:
    """The same, complete before any stream can use it."""
    counter = torch.full((1,), first, dtype=torch.int64, device=device)
    torch.cuda.current_stream(device).synchronize()
    return counter


@torch.library.custom_op(
    "actcore::next_stream", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)  # the tag: two calls are never one
def next_stream(like: Tensor, key: int) -> Tensor:
    """The next stream of a counter: ``Int64[Tensor, "1"]`` on the device of ``like``, whose elements are not read."""
    counter = _counter(key, like.device)
    with _lock:
        return counter.add_(1).clone()


@next_stream.register_fake
def _(like: Tensor, key: int) -> Tensor:
    return like.new_empty(1, dtype=torch.int64)


def _find_begin_regions() -> Callable[[int, int, Any, int], int]:
    function = ctypes.PyDLL(str(CPU_LIBRARY)).actcore_begin_regions
    function.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function.restype = ctypes.c_int64
    return function


_begin_regions = _find_begin_regions()
_room = threading.local()  # .notes: for notes


def begin_regions(key: int, listener: int = 0) -> list[int]:
    """Has the compiled regions that run from now on in this thread draw their noise from ``key``, and noted.

    Args:
        key: an unsigned number of 64 bits; 0 outside of all forwards.
        listener: the address of a C function that is called with the number of each region; 0 for none.

    Returns:
        The notes since the last call: for each region, in the order of their runs, its number, how many sizes follow,
        and those.
    """
    notes = getattr(_room, "notes", None)
    if notes is None:
        notes = _room.notes = (ctypes.c_int64 * 64)()
    while (count := _begin_regions(key, listener, notes, len(notes))) > len(notes):
        notes = _room.notes = (ctypes.c_int64 * count)()
    return notes[:count]
