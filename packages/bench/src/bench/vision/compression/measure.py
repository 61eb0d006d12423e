"""The part ``compression``, cell by cell: those that are not there yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.errors import MissingLibrary
from bench.networks import needs
from bench.units import GIB
from bench.vision.compression.results import Cell
from bench.vision.compression.ways import PLAIN, WAYS
from bench.vision.models import MODELS, SIZE

MEMORY_LIMIT = 16 * GIB
QUICK_MODELS = ("resnet18",)
QUICK_WAYS = ("L2.2", "Q-layers L3")
QUICK_BATCH, QUICK_SIZE = 4, 32

Found = TypeVar("Found", bound=Cell)


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


def missing(models: Sequence[str]) -> dict[str, str]:
    """Which of the models lack their library, and what to do."""
    found = {}
    for name in models:
        try:
            needs(MODELS[name].library)
        except MissingLibrary as error:
            found[name] = str(error)
    return found


def measure(
    wanted: Sequence[Found],
    found: Sequence[Found],
    measured: Callable[[Found], Found],
    models: Sequence[str],
    keep: Callable[[list[Found], Found], None],
) -> None:
    """Measures the cells that are not among those found, or failed there.

    Args:
        wanted: without numbers.
        found: earlier.
        measured: a cell with its numbers.
        models: the names that there are, in the order in which cells are kept.
        keep: called for each of ``wanted``, with all cells that there are by then and with the one that is new.
    """
    known = {_identity(cell): cell for cell in found}
    for cell in wanted:
        earlier = known.get(_identity(cell))
        if earlier is None or earlier.failure:
            known[_identity(cell)] = measured(cell)
        keep(sorted(known.values(), key=lambda one: _place(one, models)), cell)


def _identity(cell: Cell) -> tuple[object, ...]:
    return *cell.inputs, cell.way


def _place(cell: Cell, models: Sequence[str]) -> tuple[int, ...]:
    """By the names' order on the command line."""
    _, *inputs = cell.inputs
    return models.index(cell.model), *inputs, list(WAYS).index(cell.way)
