"""The cells of the part ``compression``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.models.image_models import MODELS, SIZE
from bench.models.libraries import needs
from bench.suites.vision.compression.results import Cell
from bench.units import GIB
from bench.ways.conversions import PLAIN

MEMORY_LIMIT = 16 * GIB
QUICK_MODELS = ("resnet18",)
QUICK_WAYS = ("L2.2", "Q-layers L3")
QUICK_BATCH, QUICK_SIZE = 4, 32


@dataclass(frozen=True)
class Asked:
    """Which cells are wanted.

    Attributes:
        models: names in ``MODELS``.
        ways: names in ``WAYS``; plain is always measured.
        batch: images of a step; ``None``: by model and device.
        size: their height and width.
        channels_last: whether images and kernels are in that order.
        memory_limit: bytes that a process may take on the CPU.
    """

    models: Sequence[str]
    ways: Sequence[str]
    batch: int | None = None
    size: int = SIZE
    channels_last: bool = False
    memory_limit: int = MEMORY_LIMIT

    def cells(self, device: str) -> list[Cell]:
        """Without numbers, the plain one of each model first."""
        return [
            Cell(name, way, self.batch or MODELS[name].batches[device], self.size, self.channels_last)
            for name in self.models
            for way in dict.fromkeys([PLAIN, *self.ways])
        ]


def require(name: str) -> None:
    """Raises ``MissingLibrary`` where a model's library is not there."""
    needs(MODELS[name].library)
