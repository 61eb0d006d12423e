"""What ``python -m bench kernels`` records: every time that was taken."""

from __future__ import annotations

from statistics import median

from bench.results.entry import Entry, at, metric, nested, numbers, part, series, table
from bench.results.record import Kind
from bench.runner.clock import median_ratio
from bench.suites.kernels.contenders import ACTCORE, CLONE, COMPRESS, COPY, DECOMPRESS, TORCH, TRAIN

# What each is a multiple of.
YARDSTICKS = {COMPRESS: COPY, DECOMPRESS: CLONE, TRAIN: TRAIN, COPY: COPY, CLONE: CLONE}


@numbers
class Timing:
    """One contender's times in one case."""

    who: str = metric("", "whose code it is", default="")
    what: str = metric("", "that it does", default="")
    moved_bytes: int = metric("bytes", "that must be read and written, each once", default=0)
    seconds: list[float] = series("s", "of a call, of each round")
    beside: int = metric("", "who took turns with it: 0 for actcore and its copies, 1 for others and theirs", default=0)

    @property
    def logical_io_gbps(self) -> float:
        """10^9 bytes that must move, a second: the median over rounds."""
        return self.moved_bytes / median(self.seconds) / 1e9


@part("case", "a codec or an operator with one dtype and size: contenders in turn")
class Measurement(Entry):
    """One case; each group that took turns has torch's ``copy_`` and ``clone`` of its own."""

    case: str = at("its name")
    bits: int = at("of an element, as in the table of cases")
    dtype: str = at("without torch.")
    nbytes: int = at("of the tensor")
    targets: dict[str, float] = table("", "what each of actcore's ratios should not exceed, by what it does")
    least_achievable: float | None = metric("", "the part of a copy's bytes a second that actcore should reach")
    timings: list[Timing] = nested(Timing, "of all contenders", many=True)

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


KIND = Kind(
    "kernels",
    (Measurement,),
    {"device": "device", "rounds": "number of rounds"},
    {"libraries": "version of a library"},
)
