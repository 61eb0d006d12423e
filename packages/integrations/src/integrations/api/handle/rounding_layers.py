"""Layers that round by themselves, whatever the level: those that ``compress_model`` exchanges, or a user built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from integrations.fewbit import exact_runs as few_bit_layers
from integrations.qmodules import exact_runs as q_layers


def rounds_in_layers(model: nn.Module) -> bool:
    """Return whether a layer of the model rounds what its backward reads."""
    return q_layers.rounds(model) or few_bit_layers.rounds(model)


@contextmanager
def exact_layers(model: nn.Module) -> Iterator[None]:
    """A block in which these layers compute as torch's."""
    with q_layers.exactly(model), few_bit_layers.exactly(model):
        yield
