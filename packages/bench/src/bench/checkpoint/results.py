"""``CheckpointResults``: everything ``python -m bench checkpoint`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

from bench.checkpoint.contenders import PLAIN
from bench.kernels.clock import median_ratio
from bench.machine import Machine


@dataclass(frozen=True)
class Planned:
    """What is planned for a model at one size, without a step.

    Attributes:
        model: its name.
        batch, size: of its inputs.
        plain_bytes: the planned activation peak where everything is kept.
        peaks: of the plans that none beats in both bytes and time, rising; in bytes.
        overheads: of these plans, the time that is added, as a part of a plain step's.
        bound_bytes: no plan has a lower peak.
        segments: of the plan with the least peak: how many there are.
        gradient_bytes: of the parameters' gradients, which are in no peak.
        plain_seconds: of a plain step, by the model of time.
        capture_seconds: that the capture took.
        search_seconds: that the search took, for all plans together.
        paper_cut: the cut of activation memory by the paper's own accounting; ``None`` where not computed.
        note: what the capture says, such as why it ran on real tensors; empty where there is nothing to say.
        failure: why there is no plan; empty otherwise.
        commit: that this was planned with.
    """

    model: str
    batch: int
    size: int
    plain_bytes: int = 0
    peaks: list[int] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    bound_bytes: int = 0
    segments: int = 0
    gradient_bytes: int = 0
    plain_seconds: float = 0.0
    capture_seconds: float = 0.0
    search_seconds: float = 0.0
    paper_cut: float | None = None
    note: str = ""
    failure: str = ""
    commit: str = ""

    @property
    def cut(self) -> float:
        """The part of the plain peak that the least one saves."""
        return 1 - self.peaks[0] / self.plain_bytes

    def overhead(self, part: float) -> float | None:
        """The least time added with at most this part of the plain peak; ``None`` where no plan has so little."""
        fitting = [
            overhead
            for peak, overhead in zip(self.peaks, self.overheads, strict=True)
            if peak <= part * self.plain_bytes
        ]
        return min(fitting, default=None)

    def reaches(self, part: float) -> bool:
        """Whether a plan has at most this part of the plain peak."""
        return self.overhead(part) is not None


@dataclass(frozen=True)
class Peak:
    """The activation peak of one step of a model, trained in one way.

    Attributes:
        model: its name.
        way: name of a ``contenders.Way``.
        batch, size: of its inputs.
        peak_bytes: as measured, see ``memory.py``; ``None`` where it was not.
        planned_bytes: as planned; ``None`` for ways without a plan.
        warm_up: samples of the step that went before.
        failure: why there is nothing, or nothing measured; empty otherwise.
        commit: that this was measured with.
    """

    model: str
    way: str
    batch: int
    size: int
    peak_bytes: int | None = None
    planned_bytes: int | None = None
    warm_up: int = 0
    failure: str = ""
    commit: str = ""

    @property
    def agreement(self) -> float | None:
        """The measured peak over the planned one; ``None`` where one is unknown."""
        if self.peak_bytes is None or not self.planned_bytes:
            return None
        return self.peak_bytes / self.planned_bytes


@dataclass(frozen=True)
class StepTimes:
    """Steps of a model, trained in one way, and plain ones between them; and how far the gradients of one step differ.

    Attributes:
        model: its name.
        way: name of a ``contenders.Way``.
        batch, size: of its inputs.
        seconds: by round.
        plain_seconds: of the plain step of the same round.
        gradients: the largest difference of any element of a gradient from a plain step's with the same random numbers,
            as a part of the largest element of all gradients.
        buffers: the same for buffers after that step, such as the statistics of BatchNorm.
        failure: why there is nothing; empty otherwise.
        commit: that this was measured with.
    """

    model: str
    way: str
    batch: int
    size: int
    seconds: list[float] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    gradients: float | None = None
    buffers: float | None = None
    failure: str = ""
    commit: str = ""

    @property
    def ratio(self) -> float:
        """A step's time over the plain one's of the same round, as the median over rounds."""
        return median_ratio(self.seconds, self.plain_seconds)

    @property
    def ratios(self) -> list[float]:
        """The same, of each round."""
        return [a / b for a, b in zip(self.seconds, self.plain_seconds, strict=True)]

    @property
    def median_seconds(self) -> float:
        """Of a step."""
        return median(self.seconds)


Entry = Planned | Peak | StepTimes
_Entry = TypeVar("_Entry", Planned, Peak, StepTimes)


@dataclass(frozen=True)
class CheckpointResults:
    """What ``python -m bench checkpoint`` found; empty lists for the parts that were not run.

    Attributes:
        machine: where and with what.
        device: that memory and time are of: ``"cpu"`` or ``"cuda"``.
        memory_limit: bytes that a step's process may take.
        seed: of weights, inputs and gradients.
        plans: by model and size.
        peaks: by model, way and size.
        times: the same.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
        channels_last: whether images and kernels were in that order.
    """

    machine: Machine
    device: str
    memory_limit: int
    seed: int = 0
    plans: list[Planned] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    channels_last: bool = False

    @property
    def entries(self) -> list[Entry]:
        """All plans, peaks and times."""
        return [*self.plans, *self.peaks, *self.times]

    def plan(self, model: str, batch: int, size: int) -> Planned | None:
        """Of a model at a size."""
        return _first(self.plans, model=model, batch=batch, size=size)

    def peak(self, model: str, way: str, batch: int, size: int) -> Peak | None:
        """Of a model, trained in a way, at a size."""
        return _first(self.peaks, model=model, way=way, batch=batch, size=size)

    def time(self, model: str, way: str, batch: int, size: int) -> StepTimes | None:
        """Of a model, trained in a way, at a size."""
        return _first(self.times, model=model, way=way, batch=batch, size=size)

    def cut(self, peak: Peak) -> float | None:
        """The part of the measured plain peak that a measured peak saves; ``None`` where one is unknown."""
        plain = self.peak(peak.model, PLAIN, peak.batch, peak.size)
        if plain is None or plain.peak_bytes is None or peak.peak_bytes is None:
            return None
        return 1 - peak.peak_bytes / plain.peak_bytes

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> CheckpointResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            plans=[Planned(**entry) for entry in fields.pop("plans")],
            peaks=[Peak(**entry) for entry in fields.pop("peaks")],
            times=[StepTimes(**entry) for entry in fields.pop("times")],
            **fields,
        )


def _first(entries: Sequence[_Entry], **wanted: object) -> _Entry | None:
    return next((one for one in entries if all(getattr(one, name) == value for name, value in wanted.items())), None)
