"""``Rates``: how fast a device is with tensors of a dtype: arithmetic, traffic, codecs, and the Python around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

_OWN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
STEPS = 4
"""Steps of measured rates in which they double: what is measured on another day, or rank, is mostly rounded alike."""


@dataclass(frozen=True)
class Line:
    """Seconds by size: ``fixed + each * size``."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        """Seconds for that many."""
        return self.fixed + self.each * size

    @property
    def rounded(self) -> Line:
        """In coarse steps."""
        return Line(rounded(self.fixed), rounded(self.each))


@dataclass(frozen=True)
class Host:
    """Seconds that Python takes, beside a kernel. On CUDA it is ahead of the device, and takes none of its time.

    Attributes:
        launch: of an operator in a forward or backward.
        repeat: more of an operator that backward repeats, beyond ``launch``.
        follow: more of an operator in a forward that follows a plan, with a look at each call and saved tensor.
        store, restore: of a tensor that a session stores and restores.
    """

    launch: float
    repeat: float
    follow: float
    store: float
    restore: float


@dataclass(frozen=True)
class Rates:
    """Of a type of device and a dtype.

    Attributes:
        measured: on this machine; otherwise they are constants.
        itemsize: bytes of an element.
        host: of Python.
        product, convolution, convolution_backward, grouped, attention: seconds of a floating-point operation in matrix
            products, convolutions and their backward, those of groups in either, and attention.
        cached, far: seconds of a byte that is read or written, where few are and where many are: see ``SMALL`` and
            ``LARGE``.
        fresh: seconds of a byte of new memory in blocks above ``MAPPED``, beside what is written there.
        function: seconds of an element of an activation or softmax.
        draw: seconds of an element that is drawn at random.
        store, restore: of codecs, by ``codecs.kind_of``: seconds by the number of elements.
        to_host, from_host: seconds by bytes, of a copy between a device and pinned memory.
        standardizing: passes over a tensor that is stored as it is normalised, besides the codec's, and over one that
            comes back so.
    """

    measured: bool
    itemsize: int
    host: Host
    product: float
    convolution: float
    convolution_backward: float
    grouped: float
    attention: float
    cached: float
    far: float
    fresh: float
    function: float
    draw: float
    store: Mapping[str, Line] = field(hash=False)
    restore: Mapping[str, Line] = field(hash=False)
    to_host: Line
    from_host: Line
    standardizing: tuple[float, float]

    def traffic(self, nbytes: float) -> float:
        """Seconds for bytes that are read and written."""
        if nbytes <= SMALL or self.far == self.cached:
            return nbytes * self.cached
        part = min(1.0, math.log(nbytes / SMALL) / math.log(LARGE / SMALL))
        return float(nbytes * self.cached * (self.far / self.cached) ** part)

    def allocation(self, nbytes: int) -> float:
        """Seconds for new memory."""
        return nbytes * self.fresh if nbytes > MAPPED else 0.0

    @property
    def rounded(self) -> Rates:
        """In coarse steps."""
        numbers: dict[str, Any] = {name: rounded(one) for name, one in vars(self).items() if isinstance(one, float)}
        return replace(
            self,
            **numbers,
            host=Host(**{name: rounded(seconds) for name, seconds in vars(self.host).items()}),
            store={kind: line.rounded for kind, line in self.store.items()},
            restore={kind: line.rounded for kind, line in self.restore.items()},
            to_host=self.to_host.rounded,
            from_host=self.from_host.rounded,
        )


Rating = Callable[[str, torch.dtype], Rates]
"""Says of a type of device and a dtype how fast it is: ``constant``, ``calibrating.calibrated``, ``.agreed``."""

SMALL, LARGE = 3 << 20, 48 << 20
"""Bytes that are moved at the rate ``cached``, and from which on at ``far``; in between by the logarithm."""

MAPPED = 32 << 20
"""The most that glibc's heap takes a block of. A larger one is mapped when it is allocated and unmapped when it is
freed, and the kernel clears each of its pages when it is first written."""

FLOPS = 1e11  # a second
BYTES = 1e10  # a second
LAUNCH = 5e-6  # seconds, of any operator

_PASS = 1 / BYTES  # of a byte

# Several operators take the mean away, square what is left, add that up, and divide; and undo it. On a CPU one does, in
# cache but for what it adds up first: measured, float32, one thread, 1.0 to 1.9 and 0.3 to 1.0 copies.
_IN_PASSES, _IN_CACHE = (4.0, 2.0), (1.5, 0.75)


def _constant(device: str, itemsize: int) -> Rates:
    """Ten floating-point operations for each byte, as on a CPU core with AVX2 and on a GPU without tensor cores; codecs
    by the bytes of the tensor that they read and write."""
    on_cpu = device == "cpu"
    store = {"groups": Line(0.0, 4 * itemsize * _PASS), "mask": Line(0.0, 1.5 * itemsize * _PASS)}
    restore = {"groups": Line(0.0, 2 * itemsize * _PASS), "mask": Line(0.0, 1.5 * itemsize * _PASS)}
    return Rates(
        measured=False,
        itemsize=itemsize,
        host=Host(LAUNCH, 0.0, 0.0, store=100e-6 if on_cpu else LAUNCH, restore=20e-6 if on_cpu else LAUNCH),
        product=1 / FLOPS,
        convolution=1 / FLOPS,
        convolution_backward=1 / FLOPS,
        grouped=1 / FLOPS,
        attention=1 / FLOPS,
        cached=_PASS,
        far=_PASS,
        fresh=0.0,
        function=0.0,
        draw=0.0,
        store=store,
        restore=restore,
        to_host=Line(1e-5, 10 * _PASS),
        from_host=Line(1e-5, 10 * _PASS),
        standardizing=_IN_CACHE if on_cpu else _IN_PASSES,
    )


@cache
def constant(device: str, dtype: torch.dtype) -> Rates:
    """What needs no measuring, and is the same everywhere: what counts there is the ratio of times."""
    return _constant(device, rated(dtype).itemsize)


def rated(dtype: torch.dtype) -> torch.dtype:
    """The dtype whose rates hold for one: integers are moved as ``float32`` is."""
    return dtype if dtype in _OWN else torch.float32


def rounded(seconds: float) -> float:
    """To the nearest power of ``2 ** (1 / STEPS)``."""
    if seconds <= 0:
        return 0.0
    return float(2.0 ** (round(STEPS * math.log2(seconds)) / STEPS))
