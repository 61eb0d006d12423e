"""What ``python -m bench vision`` records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.models.dense import DENSE
from bench.models.image_models import MODELS
from bench.results.entry import Entry, at, metric, metrics, nested, part, series, table
from bench.results.record import Kind, Record, match_seeds, order_by
from bench.results.statistics import Difference, paired_difference
from bench.runner.clock import median_ratio
from bench.runner.memory import Memory
from bench.ways.conversions import WAYS


@part("compression", "bytes of a model, trained in one way")
class Cell(Entry):
    """One model in one way."""

    model: str = at("of bench.models.image_models.MODELS")
    way: str = at("of bench.ways.conversions.WAYS")
    batch: int = at("images of a step")
    size: int = at("their height and width")
    channels_last: bool = at("whether images and kernels are in that order", default=False)
    live_bytes: int | None = metric("bytes", "that a forward leaves allocated, its result and the graph included")
    original_bytes: int | None = metric("bytes", "that autograd alone keeps; Q-layers do not report it")
    stored_bytes: int | None = metric("bytes", "kept in its place, by the report, or by autograd's graph for Q-layers")
    peak_bytes: int | None = metric("bytes", "the most of a step, less what was there before and all gradients")
    standing_peak_bytes: int | None = metric("bytes", "the same of a step that adds to gradients that are there")
    peak_in: str = metric("", "the operator in which the peak is reached, and its largest tensor", default="")

    @property
    def inputs(self) -> tuple[str, int, int, bool]:
        """The model and its inputs: what cells have in common that are compared."""
        return self.model, self.batch, self.size, self.channels_last

    def allocated_bytes(self, plain: Cell) -> int | None:
        """What is kept, as the allocator counts it: live bytes, less what lives beside the untouched model's saved
        tensors (the result, the graph); ``None`` where it was not measured.

        Args:
            plain: the untouched model with the same inputs.
        """
        if self.live_bytes is None or plain.live_bytes is None or plain.original_bytes is None:
            return None
        return self.live_bytes - (plain.live_bytes - plain.original_bytes)

    def ratio(self, plain: Cell) -> float | None:
        """How many times fewer bytes are kept than the untouched model keeps, by the larger of what report and
        allocator count; ``None`` where unknown, and for the untouched model."""
        if not self.stored_bytes or plain.original_bytes is None:
            return None
        return plain.original_bytes / max(self.stored_bytes, self.allocated_bytes(plain) or 0)

    def peak_ratios(self, plain: Cell) -> tuple[float, float] | None:
        """How many times smaller the activation peak is, and that with gradients there before; ``None`` where not
        measured."""
        found = self.peak_bytes, plain.peak_bytes, self.standing_peak_bytes, plain.standing_peak_bytes
        own, other, standing, other_standing = found
        if not own or not other or not standing or not other_standing:
            return None
        return other / own, other_standing / standing


@part("dense", "bytes of a model for detection, segmentation or self-supervised learning, trained in one way")
class DenseCell(Cell):
    """One model in one way. ``model`` is a name in ``bench.models.dense.DENSE``."""

    gradient_error: float | None = metric("", "of the whole gradient, relative; none of plain, and where losses differ")
    losses: list[float] = series("", "of the plain step and of this way's, with the same weights and draws")


FACTOR = 2.0
"""How far a predicted variance may be from the measured one, either way."""

FULL = "L0"
"""How entries call full precision."""


@part("training", "a model that was trained in one way")
class VisionCurve(Entry):
    """One run."""

    level: str = at("a way's name, or L0 for full precision")
    seed: int = at("of weights and batches")
    losses: list[float] = series("nats", "of training, by epoch, the mean over its images as they were trained on")
    accuracy: float = metric("%", "of the test images after the last epoch", default=0.0)
    model: str = at("what was trained", default="resnet20")
    images_per_second: float = metric("1/s", "of training, without the test; 0 where not measured", default=0.0)


@dataclass(frozen=True)
class LayerVariance:
    """One layer's gradient under rounding. Variances and norms are squared, and summed over the layer's parameters.

    Attributes:
        name: the layer's path in its model.
        kind: its class.
        bits: bits of an element of its input, on average.
        gradient: the squared norm of the exact gradient.
        predicted: the variance that the rounding of the layer's own input makes, by the model that bits are allocated
            with.
        measured: the same, measured: the layer alone rounds, everything else is exact.
        total: the measured variance where all layers round, as in training.
        bias: the squared distance between the mean gradient, where all layers round, and the exact one; the expected
            distance of a mean of so few is taken off, and the rest is at least 0.
    """

    name: str
    kind: str
    bits: float
    gradient: float
    predicted: float
    measured: float
    total: float
    bias: float


@dataclass(frozen=True)
class GradientVariance:
    """The gradient of a whole model under rounding.

    Attributes:
        layers: those that round their input and have parameters, in the order of the model.
        gradient: the squared norm of the exact gradient of all parameters.
        variance: the measured variance of that gradient, summed over all parameters.
        bias: the squared distance of its mean from the exact gradient, as in ``LayerVariance``.
        repeats: how often each was measured.
    """

    layers: tuple[LayerVariance, ...]
    gradient: float
    variance: float
    bias: float
    repeats: int


@metrics
class Noise(Entry):
    """What ``get_var`` measures of a gradient."""

    layers: list[LayerVariance] = nested(LayerVariance, "of each layer by itself", many=True)
    gradient: float = metric("", "the squared norm of the exact gradient", default=0.0)
    variance: float = metric("", "of the whole gradient", default=0.0)
    bias: float = metric("", "the squared distance of its mean from the exact gradient", default=0.0)
    repeats: int = metric("", "of the measurement", default=0)

    @property
    def share(self) -> float:
        """The variance of the whole gradient, as a part of its squared norm."""
        return self.variance / self.gradient

    @property
    def ratios(self) -> list[float]:
        """The predicted variance of each layer over the measured one, in the order of the layers."""
        return [layer.predicted / layer.measured for layer in self.layers if layer.measured]


def noise_metrics(found: GradientVariance) -> dict[str, Any]:
    """The metrics of a measurement."""
    return {**vars(found), "layers": list(found.layers)}


@part("variance", "the gradient's variance of ResNet-20 at a level")
class Variance(Noise):
    """One level."""

    name: str = at("the level")


@part("ablation", "the same at a step of ActNN's ablation")
class Ablated(Noise):
    """One step."""

    name: str = at("the step")


@part("time", "steps of ResNet-20, with torch's own layers and at levels in turn")
class StepTimes(Entry):
    """One order of memory."""

    order: str = at("of the images' memory")
    batch: int = metric("", "images", default=0)
    plain_seconds: list[float] = series("s", "of forward and backward with torch's own layers, by round")
    seconds: dict[str, list[float]] = table("s", "of the same at each level, by its name")

    def ratio(self, level: str) -> float:
        """A step's time over torch's own in the same round, as the median over rounds."""
        return median_ratio(self.seconds[level], self.plain_seconds)


KIND = Kind(
    "vision",
    (Cell, DenseCell, Memory, VisionCurve, Variance, Ablated, StepTimes),
    {"device": "device", "seed": "seed"},
    {"data": "set of images", "recipe": "recipe"},
    order_by(model=(*MODELS, *DENSE), batch=None, size=None, channels_last=None, way=WAYS),
    ("torchvision", "timm"),
)


@dataclass(frozen=True)
class Comparison:
    """One way's runs beside full precision's of the same seeds.

    Attributes:
        model: that was trained.
        level: the way's name; ``"L0"`` is full precision.
        accuracies: of the test images, in percent, by seed.
        losses: of the last epoch, by seed.
        difference: of the accuracies, in points.
        loss_ratio: the mean over seeds of the last epoch's training loss over full precision's.
        images_per_second: of training, the mean over seeds; ``None`` where it was not measured.
        speed: the mean over seeds of that over full precision's.
    """

    model: str
    level: str
    accuracies: list[float]
    losses: list[float]
    difference: Difference
    loss_ratio: float
    images_per_second: float | None
    speed: float | None


def comparisons(record: Record) -> Iterator[Comparison]:
    """Of each model, full precision with itself and each way with it: the seeds that both were trained with."""
    done = record.measured(VisionCurve)
    for model, level in dict.fromkeys((curve.model, curve.level) for curve in done):
        runs = [curve for curve in done if (curve.model, curve.level) == (model, level)]
        if pairs := match_seeds(runs, [curve for curve in done if (curve.model, curve.level) == (model, FULL)]):
            yield _compared(model, level, pairs)


def _compared(model: str, level: str, pairs: Sequence[tuple[VisionCurve, VisionCurve]]) -> Comparison:
    accuracies, references = ([curve.accuracy for curve in some] for some in zip(*pairs, strict=True))
    timed = [(curve, exact) for curve, exact in pairs if curve.images_per_second and exact.images_per_second]
    return Comparison(
        model,
        level,
        accuracies,
        [curve.losses[-1] for curve, _ in pairs],
        paired_difference(accuracies, references),
        fmean(curve.losses[-1] / exact.losses[-1] for curve, exact in pairs),
        fmean(curve.images_per_second for curve, _ in timed) if timed else None,
        fmean(curve.images_per_second / exact.images_per_second for curve, exact in timed) if timed else None,
    )
