"""``rounds`` and ``exactly``: whether a model's Q-layers round, and forwards in which they do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from integrations.qmodules.layers.base import QLayer


def rounds(model: nn.Module) -> bool:
    """Return whether a Q-layer in the model stores tensors in forms that change gradients."""
    return next(_rounding_layers(model), None) is not None


@contextmanager
def exactly(model: nn.Module) -> Iterator[None]:
    """A block in which the model's Q-layers that round are torch's layers. ``QDropout`` does not, and has other masks
    than torch's."""
    with ExitStack() as blocks:
        for layer in list(_rounding_layers(model)):
            blocks.enter_context(layer.precision.exactly())
        yield


def _rounding_layers(model: nn.Module) -> Iterator[QLayer]:
    return (module for module in model.modules() if isinstance(module, QLayer) and module.rounds)
