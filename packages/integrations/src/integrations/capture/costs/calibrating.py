"""``calibrated``: the rates of this machine, measured once in a process, in a fraction of a second.

Calls of a moderate size stand for all of their kind. Each is run a few times, and the least time counts, since other
load can only add to it. Times are rounded to coarse steps, so that another day or rank mostly finds the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from mmap import mmap
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, softmax

from actcore import Codec, GroupAffine, Positive
from integrations._utils.torch_internals import TorchDispatchMode, disable_current_modes
from integrations.capture.costs.codecs import GROUPS, MASK
from integrations.capture.costs.rates import LARGE, SMALL, Host, LinearTime, Rates, constant, rated

_RUNS, _LONG = 8, 0.004  # each call runs at least twice, at most so often, and until so many seconds are over
_SLOW = 0.02  # seconds; a slower call runs twice
_FEW, _MANY = 1 << 13, 1 << 18  # elements that codecs are measured with
_WIDTHS = (2, 3, 4, 5, 6, 7, 8)

# Seconds of Python, in units of an operator that a dispatch mode of Python sees: what a session and a tape take beside
# their kernels where a step stores what the one before did. Measured on one processor with torch 2.15, Python 3.11, one
# thread and small tensors.
_LAUNCH, _REPEAT, _FOLLOW, _STORE, _RESTORE = 2.0, 3.0, 4.0, 4.0, 2.0


def calibrated(device: str, dtype: torch.dtype) -> Rates:
    """Return the measured rates of a type of device on this machine, or constants if there is none or measuring fails;
    see ``rates.Rating``.

    Nothing that a program can see is touched: no generator moves, and no mode or autocast takes part.

    Args:
        device: a type of device such as ``"cpu"``; for CUDA, the current device.
        dtype: of the tensors; integers are taken to be moved as ``float32`` is.
    """
    index = 0
    if device == "cuda":
        if not torch.cuda.is_available():
            return constant(device, dtype)
        index = torch.cuda.current_device()
    elif device != "cpu":
        return constant(device, dtype)
    try:
        return _measured(device, index, rated(dtype), torch.get_num_threads())
    except Exception:  # out of memory, or a kernel that this device does not have
        return constant(device, dtype)


@cache
def _measured(device: str, index: int, dtype: torch.dtype, threads: int) -> Rates:
    on = torch.device(device, index) if device == "cuda" else torch.device(device)
    with disable_current_modes(), torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
        return _Bench(on, dtype).rates().rounded


class _Bench:
    """Calls on a device with a dtype, timed."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._on_cuda = device.type == "cuda"
        self._scale = 8 if self._on_cuda else 1  # of a side, so that a GPU has enough to do

    def rates(self) -> Rates:
        """All rates. A kind of call that this dtype does not have here gets the constant."""
        none = constant(self._device.type, self._dtype)
        cached, far = self._traffic(SMALL), self._traffic(LARGE)
        store, restore = self._codecs()
        generator, some = torch.Generator(self._device), self._full(_MANY)
        rows = some.view(-1, 256)
        functions = (lambda: gelu(some)), (lambda: softmax(rows, -1)), (lambda: layer_norm(rows, (256,)))
        rates = replace(
            none,
            measured=True,
            host=_host(self._on_cuda),
            product=self._each(none.product, self._product()),
            convolution=self._each(none.convolution, self._convolution(1, 1), self._convolution(3, 1)),
            grouped=self._each(none.grouped, self._convolution(3, 64)),
            convolution_backward=self._each(
                none.convolution_backward, self._convolution_backward(1), self._convolution_backward(3)
            ),
            attention=self._each(none.attention, self._attention()),
            cached=cached,
            far=far,
            fresh=0.0 if self._on_cuda else self._fresh(far),
            function=self._each(none.function, *((_MANY, call) for call in functions)),
            draw=self._each(none.draw, (_MANY, lambda: some.bernoulli_(0.9, generator=generator))),
            store=store,
            restore=restore,
        )
        return replace(rates, to_host=self._crossing(True), from_host=self._crossing(False)) if self._on_cuda else rates

    def _each(self, otherwise: float, *calls: tuple[float, Callable[[], object]]) -> float:
        """The seconds of calls divided by their work; ``otherwise`` where the dtype is not implemented."""
        try:
            return sum(self._seconds(call) for _, call in calls) / sum(work for work, _ in calls)
        except RuntimeError:  # not implemented for this dtype
            return otherwise

    def _full(self, *size: int) -> Tensor:
        return torch.full(size, 0.5, dtype=self._dtype, device=self._device)

    def _product(self) -> tuple[float, Callable[[], object]]:
        wide = 384 * self._scale
        a, b = self._full(wide, wide), self._full(wide, wide)
        return 2.0 * wide**3, lambda: torch.mm(a, b)

    def _attention(self) -> tuple[float, Callable[[], object]]:
        heads, length, width = 4 * self._scale, 256, 64
        query = self._full(1, heads, length, width)
        return 4.0 * heads * length**2 * width, lambda: scaled_dot_product_attention(query, query, query)

    def _images(self, size: int, groups: int) -> tuple[float, Tensor, Tensor]:
        """The work of a convolution, its input and its weight. On a CPU, channels come last."""
        channels, side = 64 if size > 1 else 192, 28
        image = self._full(4 * self._scale, channels, side, side)
        weight = self._full(channels, channels // groups, size, size)
        if not self._on_cuda:
            image, weight = (given.to(memory_format=torch.channels_last) for given in (image, weight))
        return 2.0 * image.numel() * weight[0].numel(), image, weight

    def _convolution(self, size: int, groups: int) -> tuple[float, Callable[[], object]]:
        work, image, weight = self._images(size, groups)
        return work, lambda: torch.conv2d(image, weight, padding=size // 2, groups=groups)

    def _convolution_backward(self, size: int) -> tuple[float, Callable[[], object]]:
        work, image, weight = self._images(size, 1)
        both, padding, backward = [True, True, False], [size // 2] * 2, torch.ops.aten.convolution_backward
        one, none = [1, 1], [0, 0]
        return 2 * work, lambda: backward(image, image, weight, None, one, padding, one, False, none, 1, both)

    def _traffic(self, nbytes: int) -> float:
        """The seconds of a byte, where so many are read and written."""
        given = self._full(nbytes // 2 // self._dtype.itemsize)
        made = torch.empty_like(given)
        return self._seconds(lambda: torch.neg(given, out=made)) / nbytes

    def _fresh(self, far: float) -> float:
        """The seconds of a byte in memory fresh from the kernel, beyond those of writing it."""
        nbytes = 4 << 20
        least = float("inf")
        for _ in range(2):
            with mmap(-1, nbytes) as block:
                memory = torch.frombuffer(block, dtype=torch.uint8)
                least = min(least, _once(memory.zero_))
                del memory
        return max(0.0, least / nbytes - far)

    def _codecs(self) -> tuple[dict[str, LinearTime], dict[str, LinearTime]]:
        few, many = (torch.linspace(-1, 1, numel, device=self._device).to(self._dtype) for numel in (_FEW, _MANY))
        codecs: dict[str, Codec] = {f"{bits} bits": GroupAffine(bits) for bits in _WIDTHS}
        codecs[MASK] = Positive()
        store: dict[str, LinearTime] = {}
        restore: dict[str, LinearTime] = {}
        for kind, codec in codecs.items():
            short, long = self._codec(codec, few), self._codec(codec, many)
            store[kind], restore[kind] = map(_line, short, long)
        store[GROUPS], restore[GROUPS] = store["8 bits"], restore["8 bits"]
        return store, restore

    def _codec(self, codec: Codec, tensor: Tensor) -> tuple[float, float]:
        stored = codec.compress(tensor, seed=0, stream=0)
        return (
            self._seconds(lambda: codec.compress(tensor, seed=0, stream=0)),
            self._seconds(lambda: stored.codec.decompress(stored)),
        )

    def _crossing(self, out: bool) -> LinearTime:
        """The time of copies between the device and pinned memory."""
        seconds = []
        for nbytes in (_FEW, 4 << 20):
            there = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            here = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
            to, given = (here, there) if out else (there, here)
            seconds.append(self._seconds(lambda to=to, given=given: to.copy_(given, non_blocking=True)))  # type: ignore[misc]
        each = max(0.0, seconds[1] - seconds[0]) / ((4 << 20) - _FEW)
        return LinearTime(max(0.0, seconds[0] - each * _FEW), each)

    def _seconds(self, call: Callable[[], object]) -> float:
        """The least seconds of several runs; on CUDA without the host's time to launch them."""
        first = _once(call)
        if self._on_cuda:
            return self._on_stream(call)
        return min(first, _once(call)) if first > _SLOW else _least(call)

    def _on_stream(self, call: Callable[[], object]) -> float:
        least = float("inf")
        for _ in range(3):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(_RUNS):
                call()
            end.record()
            end.synchronize()
            least = min(least, start.elapsed_time(end) / 1e3 / _RUNS)
        return least


def _least(call: Callable[[], object]) -> float:
    least, total = float("inf"), 0.0
    for run in range(_RUNS):
        taken = _once(call)
        least, total = min(least, taken), total + taken
        if run and total > _LONG:
            break
    return least


def _once(call: Callable[[], object]) -> float:
    """The seconds of a call on a CPU. With one thread, they exclude the time in which others had the processor."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    before = clock()
    call()
    return clock() - before


def _line(short: float, long: float) -> LinearTime:
    """The line through two measured points."""
    each = max(0.0, long - short) / (_MANY - _FEW)
    return LinearTime(max(0.0, short - each * _FEW), each)


class _Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _host(on_cuda: bool) -> Host:
    """The host's costs: the time of Python, by that of an operator which a mode of Python sees."""
    given = torch.zeros(8, device="cpu")
    with _Seen():  # type: ignore[no-untyped-call]
        unit = min(_least(given.neg) for _ in range(5))
    if on_cuda:  # a launch takes a few microseconds of the device's time; the rest is hidden behind other work
        return Host(launch=5e-6, repeat=0.0, follow=0.0, store=5e-6, restore=5e-6)
    return Host(_LAUNCH * unit, _REPEAT * unit, _FOLLOW * unit, _STORE * unit, _RESTORE * unit)
