"""What ``python -m bench checkpoint`` records."""

from __future__ import annotations

from statistics import median

from bench.results.entry import Entry, Timed, at, metric, part, series
from bench.results.record import Kind, Record
from bench.ways.checkpoints import PLAIN


@part("plan", "what is planned for a model at one size, without a step")
class Planned(Entry):
    """One model at one size."""

    model: str = at("its name")
    batch: int = at("of its inputs")
    size: int = at("of its inputs")
    plain_bytes: int = metric("bytes", "the planned activation peak where everything is kept", default=0)
    peaks: list[int] = series("bytes", "of the plans that none beats in both bytes and time, rising")
    overheads: list[float] = series("", "of these plans, the time that is added, as a part of a plain step's")
    bound_bytes: int = metric("bytes", "no plan has a lower peak", default=0)
    segments: int = metric("", "of the plan with the least peak: how many there are", default=0)
    gradient_bytes: int = metric("bytes", "of the parameters' gradients, which are in no peak", default=0)
    plain_seconds: float = metric("s", "of a plain step, by the model of time", default=0.0)
    capture_seconds: float = metric("s", "that the capture took", default=0.0)
    search_seconds: float = metric("s", "that the search took, for all plans together", default=0.0)
    paper_cut: float | None = metric("", "the cut of activation memory by the paper's own accounting")
    note: str = metric("", "what the capture says, such as why it ran on real tensors", default="")

    @property
    def cut(self) -> float:
        """The part of the plain peak that the least one saves."""
        return 1 - self.peaks[0] / self.plain_bytes

    def overhead(self, part: float) -> float | None:
        """The least time added with at most this part of the plain peak; ``None`` where no plan has so little."""
        pairs = zip(self.peaks, self.overheads, strict=True)
        return min((overhead for peak, overhead in pairs if peak <= part * self.plain_bytes), default=None)

    def reaches(self, part: float) -> bool:
        """Whether a plan has at most this part of the plain peak."""
        return self.overhead(part) is not None


@part("memory", "the activation peak of one step of a model, trained in one way")
class Peak(Entry):
    """One model in one way at one size."""

    model: str = at("its name")
    way: str = at("how it is trained")
    batch: int = at("of its inputs")
    size: int = at("of its inputs")
    peak_bytes: int | None = metric("bytes", "as measured")
    planned_bytes: int | None = metric("bytes", "as planned; none for ways without a plan")
    warm_up: int = metric("", "samples of the step that went before", default=0)

    @property
    def agreement(self) -> float | None:
        """The measured peak over the planned one; ``None`` where one is unknown."""
        if self.peak_bytes is None or not self.planned_bytes:
            return None
        return self.peak_bytes / self.planned_bytes


@part("time", "steps of a model, trained in one way, with plain ones between them")
class StepTimes(Timed, Entry):
    """One model in one way at one size."""

    model: str = at("its name")
    way: str = at("how it is trained")
    batch: int = at("of its inputs")
    size: int = at("of its inputs")
    seconds: list[float] = series("s", "by round")
    plain_seconds: list[float] = series("s", "of the plain step of the same round")
    gradients: float | None = metric("", "the largest difference of any element from plain, over the largest of all")
    buffers: float | None = metric("", "the same for buffers after that step, such as BatchNorm's statistics")

    @property
    def ratios(self) -> list[float]:
        """A step's time over the plain one's, of each round."""
        return [a / b for a, b in zip(self.seconds, self.plain_seconds, strict=True)]

    @property
    def times_plain(self) -> float:
        """The median of these."""
        return median(self.ratios)


KIND = Kind(
    "checkpoint",
    (Planned, Peak, StepTimes),
    {
        "device": "device",
        "memory_limit": "memory limit of a step's process",
        "seed": "seed",
        "channels_last": "order of channels",
    },
)


def cut(record: Record, peak: Peak) -> float | None:
    """The part of the measured plain peak that a measured peak saves; ``None`` where one is unknown."""
    plain = record.find(Peak, model=peak.model, way=PLAIN, batch=peak.batch, size=peak.size)
    if plain is None or plain.peak_bytes is None or peak.peak_bytes is None:
        return None
    return 1 - peak.peak_bytes / plain.peak_bytes
