"""What was published of the networks that ``python -m bench vision`` measures, as data, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.models.image_models import SIZE
from bench.suites.vision.compression.results import Cell

_GACT = "GACT's repository, data of its figures (commit c469538), on a GPU"

_USER = "a user's reproduction, GACT-ICML issue 2"

_ACTNN = "ActNN's README and abstract (arXiv 2104.14129), 2 bits on average"

ABLATION_SOURCE = "ActNN's development README (GACT-ICML, commit cfd3bd5), PreAct-ResNet-56 in 2 bits"

ABLATION: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "per tensor": (0.297, 0.909),
        "per group": (0.0314, 0.151),
        "+ per sample": (0.0335, 0.151),
        "+ per layer": (0.0198, 0.0763),
        "+ per layer, use_gradient": (0.00262, 0.0329),
    }
)
"""The gradient's variance, in absolute terms, on CIFAR-10 and CIFAR-100, by the steps of the ablation."""

TRAINED_SOURCE = "ActNN's README (arXiv 2104.14129), 2 bits on average"

MODEL = "resnet50"

KEPT: Mapping[str, float] = MappingProxyType({"L1": 4.8, "L2": 6.7, "L2.2": 11.3, "Q-layers L3": 12.0})
"""Times fewer bytes at least, by way: GACT's figures at 4 and 2 bits on average, ActNN's; L1 has norms in 8 bits."""

PEAK = 4.4
"""Times smaller the peak, which was GACT's while what it kept became 11.3 times smaller."""

PEAKED = ("L2.2", "Q-layers L3")  # of 2 bits on average, as that was


@dataclass(frozen=True)
class Compressed:
    """Memory of a model, compressed and not.

    Attributes:
        model, way: the names that this bench has for them.
        bits: as the source has it.
        batch: images of 224 x 224; 0 where the source does not say.
        kept: activation memory before and after, in ``unit``; only their ratio in some sources, which then is before.
        peak: the same of the peak; ``None`` where it is not said.
        unit: of ``kept`` and ``peak``.
        source: where it is from.
    """

    model: str
    way: str
    bits: str
    batch: int
    kept: tuple[float, float]
    peak: tuple[float, float] | None
    unit: str
    source: str

    @property
    def ratio(self) -> float:
        """How many times less is kept."""
        return self.kept[0] / self.kept[1]

    @property
    def peak_ratio(self) -> float | None:
        """How many times smaller the peak is."""
        return None if self.peak is None else self.peak[0] / self.peak[1]


COMPRESSED = (
    Compressed("resnet50", "L1.1", "8", 128, (10.94, 2.98), None, "GB", _GACT),
    Compressed("resnet50", "L2", "4", 128, (10.94, 1.64), (11.05, 2.84), "GB", _GACT),
    Compressed("resnet50", "L2.2", "2", 128, (10.94, 0.97), (11.05, 2.52), "GB", _GACT),
    Compressed("resnet50", "L2.2", "2", 64, (5208.7, 650.6), (5641, 3446), "MB", _USER),
    Compressed("resnet50", "Q-layers L3", "2", 0, (12, 1), None, "times", _ACTNN),
)


@dataclass(frozen=True)
class Trained:
    """What a model reached after training, in percent.

    Attributes:
        metric: what is counted, and on which data.
        official: trained as usual.
        compressed: trained with ActNN.
    """

    metric: str
    official: float
    compressed: float


TRAINED: Mapping[str, Trained] = MappingProxyType(
    {
        "fasterrcnn_resnet50_fpn": Trained("mAP, COCO", 37.4, 37.4),
        "retinanet_resnet50_fpn": Trained("mAP, COCO", 36.5, 36.3),
        "fcn_resnet50": Trained("mIoU, Cityscapes", 73.6, 72.9),
        "fpn_resnet50": Trained("mIoU, Cityscapes", 74.5, 74.7),
        "moco_v2_resnet50": Trained("top-1, ImageNet", 67.7, 67.3),
    }
)
"""By the names that ``bench.suites.vision.dense`` has for the models."""


def judged(cell: Cell) -> bool:
    """Whether something was asked of a model and its inputs."""
    return cell.model == MODEL and cell.size == SIZE


def least_kept(cell: Cell) -> float | None:
    """How many times fewer bytes a cell is asked to keep; ``None`` where nothing is asked."""
    return KEPT.get(cell.way) if judged(cell) else None


def peaked_enough(cell: Cell, ratio: float) -> bool | None:
    """Whether one of a cell's ``peak_ratios`` is what was asked; ``None``: nothing was."""
    return ratio > PEAK if cell.way in PEAKED and judged(cell) else None
