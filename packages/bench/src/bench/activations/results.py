"""``ActivationResults``: sizes, errors and times, from which the tables are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from bench.kernels.clock import median_ratio
from bench.machine import Machine
from bench.memory import Memory


@dataclass(frozen=True)
class LevelResult:
    """One model at one level.

    Attributes:
        level: its name.
        original_bytes: of what autograd alone keeps of one forward of the model.
        stored_bytes: kept instead.
        errors: relative, of the whole gradient at initialisation, one entry a step: each step rounds with other noise.
        seconds: of forward and backward, by round.
    """

    level: str
    original_bytes: int
    stored_bytes: int
    errors: list[float]
    seconds: list[float]

    @property
    def ratio(self) -> float:
        """How many times fewer bytes are kept; 1 where none are."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def error(self) -> float:
        """The mean of the gradient's relative errors."""
        return fmean(self.errors)


@dataclass(frozen=True)
class ModelResult:
    """One model at all levels, in turn with the same model uncompressed.

    Attributes:
        model: its name.
        what: model and data in words.
        plain_seconds: of forward and backward without compression, by round.
        levels: of every level.
    """

    model: str
    what: str
    plain_seconds: list[float]
    levels: list[LevelResult]

    def time_ratio(self, level: LevelResult) -> float:
        """A step's time over the plain step's in the same round, as the median over rounds."""
        return median_ratio(level.seconds, self.plain_seconds)


@dataclass(frozen=True)
class Overhead:
    """A chain of tiny layers, compressed and plain in turn.

    Attributes:
        chain: the layers in words.
        nbytes: of each of its activations.
        saved: tensors that autograd saved in a step, weights included.
        packed: those of them that were stored in another form.
        plain_seconds: of forward and backward without compression, by round.
        seconds: the same with it.
        codec_seconds: of compressing and decompressing one activation with nothing around it, by round.
    """

    chain: str
    nbytes: int
    saved: int
    packed: int
    plain_seconds: list[float]
    seconds: list[float]
    codec_seconds: list[float]

    @property
    def step_microseconds(self) -> float:
        """What compression adds to a step: the median over rounds."""
        return 1e6 * median(b - a for a, b in zip(self.plain_seconds, self.seconds, strict=True))

    @property
    def saved_microseconds(self) -> float:
        """All of that on every tensor that went through the hooks."""
        return self.step_microseconds / self.saved

    def packed_microseconds(self, alone: float) -> float:
        """What a packed tensor costs beyond the codec, where one that is left alone costs ``alone`` microseconds."""
        return (self.step_microseconds - alone * (self.saved - self.packed)) / self.packed - self.codec_microseconds

    @property
    def codec_microseconds(self) -> float:
        """What the codec alone takes for a tensor of that size: the median over rounds."""
        return 1e6 * median(self.codec_seconds)


def alone_microseconds(overheads: Sequence[Overhead]) -> float | None:
    """What a tensor costs that is left alone, by the chain that packs nothing; ``None`` without one."""
    return next((entry.saved_microseconds for entry in overheads if not entry.packed), None)


@dataclass(frozen=True)
class Adaptation:
    """One model at an adaptive level: steps that make a plan, and steps that follow one, in turn.

    Attributes:
        model: its name.
        level: its name.
        interval: steps from one adaptation to the next, unless the user says otherwise.
        seconds: of an ordinary step, by round.
        adapting_seconds: of a step that is measured, planning included, by round.
    """

    model: str
    level: str
    interval: int
    seconds: list[float]
    adapting_seconds: list[float]

    @property
    def steps(self) -> float:
        """How many ordinary steps a measured one takes: the median over rounds."""
        return median_ratio(self.adapting_seconds, self.seconds)

    @property
    def share(self) -> float:
        """What adapting adds to a run, as a part of it."""
        return (self.steps - 1) / self.interval


@dataclass(frozen=True)
class InitialError:
    """The gradient of a model as it is made.

    Attributes:
        model: timm's name.
        what: the data in words.
        level: its name.
        errors: relative, of the whole gradient, one entry a step.
    """

    model: str
    what: str
    level: str
    errors: list[float]

    @property
    def error(self) -> float:
        """The mean of the relative errors."""
        return fmean(self.errors)


@dataclass(frozen=True)
class ActivationResults:
    """What ``python -m bench activations`` found; empty lists for the parts that were not run.

    Attributes:
        machine: where and with what.
        models: of every model.
        overheads: of every chain.
        skipped: what was left out, and why.
        seconds: that it took.
        memories: of every model, untouched (level ``"L0"``) and at every level.
        adaptations: of every model, at adaptive levels.
        initial: of the six image models.
    """

    machine: Machine
    models: list[ModelResult]
    overheads: list[Overhead]
    skipped: list[str]
    seconds: float
    memories: list[Memory] = field(default_factory=list)  # files of before these parts have none
    adaptations: list[Adaptation] = field(default_factory=list)
    initial: list[InitialError] = field(default_factory=list)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> ActivationResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        models = [
            ModelResult(**{**entry, "levels": [LevelResult(**level) for level in entry["levels"]]})
            for entry in fields.pop("models")
        ]
        overheads = [Overhead(**entry) for entry in fields.pop("overheads")]
        return cls(
            machine=Machine(**fields.pop("machine")),
            models=models,
            overheads=overheads,
            memories=[Memory(**entry) for entry in fields.pop("memories", [])],
            adaptations=[Adaptation(**entry) for entry in fields.pop("adaptations", [])],
            initial=[InitialError(**entry) for entry in fields.pop("initial", [])],
            **fields,
        )
