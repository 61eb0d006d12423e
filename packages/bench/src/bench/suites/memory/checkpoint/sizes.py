"""At which sizes a model is measured: its table's own where memory allows, and one at which steps take seconds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.models.architectures import Architecture
from bench.suites.memory.checkpoint.planning import Planner

SMALL_BATCH, SMALL_SIZE = 4, 96
_SMALL: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        # With fewer words the gradients, which are in no activation peak, are more than all activations together.
        "bert": (4, 256),
        "gpt2": (4, 256),
        "llama": (4, 256),
        "swin": (2, 224),  # takes no other size
        "unet": (1, 188),  # the least that its unpadded convolutions leave something of
    }
)


def small(architecture: Architecture) -> tuple[int, int]:
    """Batch and size at which a step takes seconds at most."""
    return _SMALL.get(architecture.name, (SMALL_BATCH, min(architecture.size, SMALL_SIZE)))


def fitting(planner: Planner, batch: int, size: int, limit: int) -> int:
    """The batch itself, or the largest power of two below whose plain step fits.

    Args:
        planner: of the model.
        batch, size: of the inputs.
        limit: bytes for the activation peak, the parameters and their gradients.

    Raises:
        Exception: as planning does.
    """
    while batch > 1:
        plan = planner.at(batch, size)
        if plan.plain_peak + 2 * plan.graph.gradients <= limit:
            break
        batch = 1 << (batch - 1).bit_length() - 1
    return batch
