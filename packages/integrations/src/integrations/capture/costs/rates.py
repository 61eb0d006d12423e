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
"""Measured rates are rounded to this many steps for each doubling, so that another day or rank mostly finds the
same."""


@dataclass(frozen=True)
class LinearTime:
    """Seconds that depend on a size: ``fixed + each * size``."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        """The seconds for a size."""
        return self.fixed + self.each * size

    @property
    def rounded(self) -> LinearTime:
        """The line with both numbers rounded; see ``rounded``."""
        return LinearTime(rounded(self.fixed), rounded(self.each))


@dataclass(frozen=True)
class Host:
    """Seconds that Python takes beside a kernel. On CUDA, Python runs ahead of the device and takes none of its time.

    Attributes:
        launch: of an operator in a forward or backward.
        repeat: of an operator that backward repeats, beyond ``launch``.
        follow: of an operator in a forward that follows a plan, a look at each call and saved tensor included, beyond
            ``launch``.
        store, restore: of a tensor that a session stores and restores.
    """

    launch: float
    repeat: float
    follow: float
    store: float
    restore: float


@dataclass(frozen=True)
class Rates:
    """The rates of a type of device with tensors of a dtype.

    Attributes:
        measured: whether they were measured on this machine; otherwise they are constants.
        itemsize: bytes of an element.
        host: seconds of Python.
        product, convolution, convolution_backward, grouped, attention: seconds of a floating-point operation in matrix
            products, convolutions and their backward, those of groups in either, and attention.
        cached, far: seconds of a byte that is read or written, where few are and where many are: see ``SMALL`` and
            ``LARGE``.
        fresh: seconds of a byte of new memory in blocks above ``MAPPED``, beside what is written there.
        function: seconds of an element of an activation or softmax.
        draw: seconds of an element that is drawn at random.
        store, restore: seconds of a codec by the number of elements, by ``codecs.get_kind``.
        to_host, from_host: seconds of a copy between a device and pinned memory, by bytes.
        standardizing: passes over a tensor, besides the codec's, to normalise it when it is stored, and to undo that
            when it is restored.
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
    store: Mapping[str, LinearTime] = field(hash=False)
    restore: Mapping[str, LinearTime] = field(hash=False)
    to_host: LinearTime
    from_host: LinearTime
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
        """The rates, each rounded; see ``rounded``."""
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
"""A function from a type of device and a dtype to their rates: ``constant``, ``calibrating.calibrated``,
``.agreed``."""

SMALL, LARGE = 3 << 20, 48 << 20
"""Up to the first number of bytes the rate ``cached`` holds, from the second one on ``far``; in between the logarithm
interpolates."""

MAPPED = 32 << 20
"""The largest block that glibc takes from its heap, in bytes. A larger one is mapped when it is allocated and unmapped
when it is freed, and the kernel clears each of its pages when it is first written."""

FLOPS = 1e11  # floating-point operations a second
BYTES = 1e10  # bytes a second
LAUNCH = 5e-6  # seconds of any operator

_PASS = 1 / BYTES  # seconds of a byte

# Standardising takes several operators on a GPU: subtract the mean, square, sum, divide; and the same to undo it. On a
# CPU one operator does it, mostly in cache: measured with float32 and one thread, it takes as long as 1.0 to 1.9 copies
# to store and 0.3 to 1.0 to restore.
_IN_PASSES, _IN_CACHE = (4.0, 2.0), (1.5, 0.75)


def _constant(device: str, itemsize: int) -> Rates:
    """Rates with ten floating-point operations for each byte, as on a CPU core with AVX2 and on a GPU without tensor
    cores. A codec takes the time of the bytes that it reads and writes."""
    on_cpu = device == "cpu"
    store = {"groups": LinearTime(0.0, 4 * itemsize * _PASS), "mask": LinearTime(0.0, 1.5 * itemsize * _PASS)}
    restore = {"groups": LinearTime(0.0, 2 * itemsize * _PASS), "mask": LinearTime(0.0, 1.5 * itemsize * _PASS)}
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
        to_host=LinearTime(1e-5, 10 * _PASS),
        from_host=LinearTime(1e-5, 10 * _PASS),
        standardizing=_IN_CACHE if on_cpu else _IN_PASSES,
    )


@cache
def constant(device: str, dtype: torch.dtype) -> Rates:
    """Rates that need no measuring and are the same everywhere: only the ratios of times matter."""
    return _constant(device, rated(dtype).itemsize)


def rated(dtype: torch.dtype) -> torch.dtype:
    """The dtype whose rates hold for ``dtype``: integers are moved as ``float32`` is."""
    return dtype if dtype in _OWN else torch.float32


def rounded(seconds: float) -> float:
    """Rounds to the nearest power of ``2 ** (1 / STEPS)``."""
    if seconds <= 0:
        return 0.0
    return float(2.0 ** (round(STEPS * math.log2(seconds)) / STEPS))
