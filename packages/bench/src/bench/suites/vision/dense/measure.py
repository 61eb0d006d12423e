"""The cells of the part ``dense``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.models.dense import DENSE
from bench.models.libraries import needs
from bench.suites.vision.dense.results import DenseCell
from bench.ways.conversions import PLAIN

DENSE_WAYS = ("L2", "Q-layers L3")
QUICK_DENSE = ("fcn_resnet50",)
QUICK_BATCH, QUICK_SIZE = 1, 96


@dataclass(frozen=True)
class Asked:
    """Which cells are wanted.

    Attributes:
        models: names in ``DENSE``.
        ways: names in ``WAYS``; plain is always measured.
        batch, size: images of a step, and their height and width; ``None``: by model and device.
    """

    models: Sequence[str]
    ways: Sequence[str]
    batch: int | None = None
    size: int | None = None

    def cells(self, device: str) -> list[DenseCell]:
        """Without numbers, the plain one of each model first."""
        return [
            DenseCell(name, way, self.batch or DENSE[name].batches[device], self.size or DENSE[name].sizes[device])
            for name in self.models
            for way in dict.fromkeys([PLAIN, *self.ways])
        ]


def require(_: str) -> None:
    """Raises ``MissingLibrary`` where the models' library is not there."""
    needs("torchvision")
