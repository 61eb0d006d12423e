"""``ModelPrecision``: what the layers of one model share. ``QScheme``: ActNN's name for what all models share."""

from __future__ import annotations

from torch import Tensor

from integrations.qmodules.levels import QLevel


class ModelPrecision:
    """What the layers of one converted model share.

    Args:
        level: of all layers.
    """

    def __init__(self, level: QLevel) -> None:
        self.level = level


class QScheme:
    """ActNN's name for what per-sample gradients need to know.

    Attributes:
        num_samples: the size of the training set.
        batch: the places in the training set of the samples of the batch that comes next.
    """

    num_samples: int | None = None
    batch: Tensor | None = None


class QBNScheme(QScheme):
    """ActNN's name for the same of normalisation layers."""
