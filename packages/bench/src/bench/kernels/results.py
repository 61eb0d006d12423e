"""``KernelResults``: every time that was taken, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.kernels.clock import median_ratio
from bench.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, TORCH, TRAIN
from bench.machine import Machine

# What each is a multiple of.
YARDSTICKS = {COMPRESS: COPY, DECOMPRESS: CLONE, TRAIN: TRAIN, COPY: COPY, CLONE: CLONE}


@dataclass(frozen=True)
class Timing:
    """One contender's times in one case.

    Attributes:
        who, what, moved_bytes: as in ``bench.kernels.contenders.Contender``.
        seconds: a call, of each round.
        beside: who took turns with it: 0 for actcore and its yardsticks, 1 for the others and theirs.
    """

    who: str
    what: str
    moved_bytes: int
    seconds: list[float]
    beside: int = 0

    @property
    def logical_io_gbps(self) -> float:
        """10^9 bytes that must move, a second: the median over rounds."""
        return self.moved_bytes / median(self.seconds) / 1e9


@dataclass(frozen=True)
class Measurement:
    """A case with one dtype and size: contenders in turn.

    Attributes:
        case: its name.
        bits: an element, as in the table of cases.
        dtype: without ``torch.``.
        nbytes: of the tensor.
        targets: what each of actcore's ratios should not exceed, by "compress", "decompress" or "forward + backward".
        least_achievable: the fraction of ``copy_``'s bytes a second that actcore should reach.
        timings: of all contenders; each group that took turns has torch's ``copy_`` and ``clone`` of its own.
    """

    case: str
    bits: int
    dtype: str
    nbytes: int
    targets: dict[str, float]
    least_achievable: float | None
    timings: list[Timing]

    def get(self, who: str, what: str) -> Timing | None:
        """The times of one contender, if it took part."""
        return next((timing for timing in self.timings if (timing.who, timing.what) == (who, what)), None)

    def _yardstick(self, timing: Timing, what: str) -> Timing:
        """torch's times for ``what`` among those that took turns with ``timing``."""
        return next(
            found for found in self.timings if (found.who, found.what, found.beside) == (TORCH, what, timing.beside)
        )

    def ratio(self, timing: Timing) -> float:
        """Its time over its yardstick's, as the median over rounds."""
        return median_ratio(timing.seconds, self._yardstick(timing, YARDSTICKS[timing.what]).seconds)

    def achievable(self, timing: Timing) -> float:
        """Its bytes a second over ``copy_``'s in the same round, as the median over rounds: 1 is as fast as a copy."""
        copy = self._yardstick(timing, COPY)
        return timing.moved_bytes / copy.moved_bytes / median_ratio(timing.seconds, copy.seconds)

    def reached(self, timing: Timing) -> bool | None:
        """Whether actcore keeps the target; ``None`` where there is none."""
        if timing.who != ACTCORE:
            return None
        if self.least_achievable is not None:
            return self.achievable(timing) >= self.least_achievable
        target = self.targets.get(timing.what)
        return None if target is None else self.ratio(timing) <= target

    def call_microseconds(self, who: str) -> float | None:
        """Both ways of a codec together: the median over rounds."""
        there, back = self.get(who, COMPRESS), self.get(who, DECOMPRESS)
        if there is None or back is None:
            return None
        return 1e6 * median(a + b for a, b in zip(there.seconds, back.seconds, strict=True))


@dataclass(frozen=True)
class KernelResults:
    """What ``python -m bench kernels`` found.

    Attributes:
        machine: where and with what.
        device: ``"cpu"`` or ``"cuda"``.
        rounds: that were counted, of each case.
        libraries: version of each other library, or why it did not take part.
        skipped: what was left out, and why.
        measurements: of every case, dtype and size.
        seconds: that it took.
    """

    machine: Machine
    device: str
    rounds: int
    libraries: dict[str, str]
    skipped: list[str]
    measurements: list[Measurement]
    seconds: float

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> KernelResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        measurements = [
            Measurement(**{**entry, "timings": [Timing(**timing) for timing in entry["timings"]]})
            for entry in fields.pop("measurements")
        ]
        return cls(machine=Machine(**fields.pop("machine")), measurements=measurements, **fields)
