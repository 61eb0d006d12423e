"""``Standing``: what of a training is there all the time, whatever the inputs: weights, gradients, optimizer states."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from integrations.planner.optimizers import Optimizer, nbytes


@dataclass(frozen=True)
class Standing:
    """Bytes that do not depend on the inputs.

    Attributes:
        parameters: how many elements the parameters have.
        trained: how many of them are trained.
        weights: bytes of parameters and buffers.
        gradients: bytes of all gradients.
        states: bytes of the optimizer's states.
        step: bytes that the optimizer's step takes for a moment.
    """

    parameters: int
    trained: int
    weights: int
    gradients: int
    states: int
    step: int

    @property
    def nbytes(self) -> int:
        """Bytes that are there from the first step's end on, the gradients left out."""
        return self.weights + self.states


def count_static_memory(
    model: nn.Module, optimizer: Optimizer, together: bool, fsdp: int = 1, others: int = 0
) -> Standing:
    """What is there for a model, on each of the ranks that shard weights, gradients and states.

    Args:
        model: the model, of any device.
        optimizer: what trains it.
        together: whether the optimizer updates all parameters at once, as on a GPU.
        fsdp: how many ranks shard it by FSDP2.
        others: bytes of gradients of other ranks' parameters.
    """
    parameters = list(model.parameters())
    trained = [one for one in parameters if one.requires_grad]

    def shared(count: int) -> int:
        return math.ceil(count / fsdp)

    return Standing(
        parameters=sum(one.numel() for one in parameters),
        trained=sum(one.numel() for one in trained),
        weights=shared(sum(map(nbytes, parameters))) + sum(map(nbytes, model.buffers())),
        gradients=shared(sum(map(nbytes, trained))) + others,
        states=shared(optimizer.states(trained)),
        step=shared(optimizer.temporaries(trained, together)),
    )
