"""Sizes, errors and times that ``python -m bench activations`` records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from bench.results.entry import Entry, Timed, at, metric, part, series
from bench.results.record import Kind
from bench.runner.memory import Memory


@part("models", "a model at a level, in turn with the same model uncompressed")
class LevelResult(Timed, Entry):
    """One model at one level."""

    model: str = at("its name")
    level: str = at("of integrations.LEVELS")
    what: str = metric("", "model and data in words", default="")
    original_bytes: int = metric("bytes", "that autograd alone keeps of a forward of the model", default=0)
    stored_bytes: int = metric("bytes", "that are kept instead", default=0)
    errors: list[float] = series("", "of the whole gradient, relative, one a step, each with noise of its own")
    seconds: list[float] = series("s", "of forward and backward, by round")
    plain_seconds: list[float] = series("s", "of the same without compression")

    @property
    def smaller(self) -> float:
        """How many times fewer bytes are kept; 1 where none are."""
        return self.original_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def error(self) -> float:
        """The mean of the gradient's relative errors."""
        return fmean(self.errors)


@part("overhead", "a chain of tiny layers, compressed and plain in turn")
class Overhead(Entry):
    """One chain."""

    chain: str = at("the layers in words")
    nbytes: int = metric("bytes", "of each of its activations", default=0)
    saved: int = metric("", "tensors that autograd saved in a step, weights included", default=0)
    packed: int = metric("", "those of them that were stored in another form", default=0)
    plain_seconds: list[float] = series("s", "of forward and backward without compression, by round")
    seconds: list[float] = series("s", "of the same with it")
    codec_seconds: list[float] = series("s", "of compressing and decompressing one activation alone, by round")

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


@part("adaptation", "a model at an adaptive level: steps that make a plan, and steps that follow one, in turn")
class Adaptation(Entry):
    """One model at one level."""

    model: str = at("its name")
    level: str = at("of integrations.LEVELS")
    interval: int = metric("", "steps from one adaptation to the next, unless the user says otherwise", default=0)
    seconds: list[float] = series("s", "of an ordinary step, by round")
    adapting_seconds: list[float] = series("s", "of a step that is measured, planning included, by round")

    @property
    def steps(self) -> float:
        """How many ordinary steps a measured one takes: the median over rounds."""
        return median(one / other for one, other in zip(self.adapting_seconds, self.seconds, strict=True))

    @property
    def share(self) -> float:
        """What adapting adds to a run, as a part of it."""
        return (self.steps - 1) / self.interval


@part("initial", "the gradient of a model as it is made")
class InitialError(Entry):
    """One model at one level."""

    model: str = at("timm's name")
    level: str = at("of integrations.LEVELS")
    what: str = metric("", "the data in words", default="")
    errors: list[float] = series("", "of the whole gradient, relative, one a step")

    @property
    def error(self) -> float:
        """The mean of the relative errors."""
        return fmean(self.errors)


KIND = Kind("activations", (LevelResult, Overhead, Memory, Adaptation, InitialError))
