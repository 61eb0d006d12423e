"""``VisionResults``: bytes, curves, variances and times, from which the tables are computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.kernels.clock import median_ratio
from bench.machine import Machine
from bench.memory import Memory
from bench.statistics import Difference, paired_difference
from bench.vision.compression.results import Cell
from bench.vision.dense.results import DenseCell
from bench.vision.tasks import MOMENTA
from bench.vision.training import FULL, VisionCurve
from integrations.qmodules import GradientVariance, LayerVariance


@dataclass(frozen=True)
class Variance:
    """The gradient's variance under one way of rounding.

    Attributes:
        name: a level, or a step of the ablation.
        found: what ``qmodules.get_var`` measured.
        commit: that it was measured with; empty in older files.
    """

    name: str
    found: GradientVariance
    commit: str = ""

    @property
    def share(self) -> float:
        """The variance of the whole gradient, as a part of its squared norm."""
        return self.found.variance / self.found.gradient

    @property
    def ratios(self) -> list[float]:
        """The predicted variance of each layer over the measured one, in the order of the layers."""
        return [layer.predicted / layer.measured for layer in self.found.layers if layer.measured]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Variance:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content["found"])
        layers = tuple(LayerVariance(**entry) for entry in fields.pop("layers"))
        return cls(**{**content, "found": GradientVariance(layers=layers, **fields)})


@dataclass(frozen=True)
class StepTimes:
    """Steps of ResNet-20, with torch's own layers and at levels in turn.

    Attributes:
        order: of the images' memory.
        batch: images.
        plain_seconds: of forward and backward with torch's own layers, by round.
        seconds: the same at each level, by its name.
        commit: that they were timed with; empty in older files.
    """

    order: str
    batch: int
    plain_seconds: list[float]
    seconds: dict[str, list[float]]
    commit: str = ""

    def ratio(self, level: str) -> float:
        """A step's time over torch's own in the same round, as the median over rounds."""
        return median_ratio(self.seconds[level], self.plain_seconds)


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


@dataclass(frozen=True)
class VisionResults:
    """What ``python -m bench vision`` found; empty lists for the parts that were not run.

    Attributes:
        machine: where and with what.
        data: the images in words; empty where none were needed.
        recipe: how networks were trained, by name of the setting; empty where none was.
        memories: of ResNet-50, with torch's own layers (``"L0"``) and at levels.
        curves: of every run of training; level ``"L0"`` is full precision.
        variances: of the gradient of ResNet-20, at levels.
        ablation: the same at each step of ActNN's ablation.
        times: of steps of ResNet-20, by order of memory.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
        compressions: of the originals' models, by model, inputs and way.
        device: of compressions and dense, and of training on a folder; the other parts are on the CPU.
        seed: of compressions and dense.
        dense: of ActNN's models for detection, segmentation and self-supervised learning, by model, inputs and way.
    """

    machine: Machine
    data: str
    recipe: dict[str, float]
    memories: list[Memory] = field(default_factory=list)
    curves: list[VisionCurve] = field(default_factory=list)
    variances: list[Variance] = field(default_factory=list)
    ablation: list[Variance] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    compressions: list[Cell] = field(default_factory=list)
    device: str = "cpu"
    seed: int = 0
    dense: list[DenseCell] = field(default_factory=list)

    def comparisons(self) -> Iterator[Comparison]:
        """Of each model, full precision with itself and each way with it: the seeds that both were trained with."""
        runs: dict[tuple[str, str], dict[int, VisionCurve]] = {}
        for curve in self.curves:
            if not curve.failure:
                runs.setdefault((curve.model, curve.level), {})[curve.seed] = curve
        for (model, level), curves in runs.items():
            exact = runs.get((model, FULL), {})
            pairs = [(curves[seed], exact[seed]) for seed in curves if seed in exact]
            if pairs:
                yield _compared(model, level, pairs)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> VisionResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            recipe=_recipe(fields.pop("recipe")),
            memories=[Memory(**entry) for entry in fields.pop("memories")],
            curves=[_curve(entry) for entry in fields.pop("curves")],
            variances=[Variance.of(entry) for entry in fields.pop("variances")],
            ablation=[Variance.of(entry) for entry in fields.pop("ablation")],
            times=[StepTimes(**entry) for entry in fields.pop("times")],
            compressions=[Cell(**entry) for entry in fields.pop("compressions", [])],
            dense=[DenseCell.of(entry) for entry in fields.pop("dense", [])],
            **fields,
        )


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


def _recipe(content: Mapping[str, float]) -> dict[str, float]:
    """As a file has it. Older files have the momentum that the cycle of rates put others in the place of."""
    recipe = dict(content)
    return {**recipe, **MOMENTA} if recipe.pop("momentum", None) else recipe


def _curve(content: Mapping[str, Any]) -> VisionCurve:
    """From what ``dataclasses.asdict`` made of one. Files of before hooks were trained with name Q-layers' level alone,
    and no models."""
    if "model" not in content and content["level"] != FULL:
        return VisionCurve(**{**content, "level": f"Q-layers {content['level']}"})
    return VisionCurve(**content)
