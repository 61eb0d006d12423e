"""``Standing``: what of a training is there all the time, whatever the inputs: weights, gradients, optimizer states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    """Return the static memory of a training, on the one of the ranks that share it that takes the most.

    Args:
        model: the model, of any device.
        optimizer: what trains it.
        together: whether the optimizer updates all parameters at once, as on a GPU.
        fsdp: how many ranks shard it by FSDP2.
        others: bytes of gradients of other ranks' parameters.
    """
    parameters = list(model.parameters())
    trained = [one for one in parameters if one.requires_grad]
    shards = [largest_shard(one, fsdp) for one in trained]
    return Standing(
        parameters=sum(one.numel() for one in parameters),
        trained=sum(one.numel() for one in trained),
        weights=sum(nbytes(largest_shard(one, fsdp)) for one in parameters) + sum(map(nbytes, model.buffers())),
        gradients=sum(map(nbytes, shards)) + others,
        states=optimizer.states(shards),
        step=optimizer.temporaries(shards, together),
    )


def largest_shard(parameter: Tensor, fsdp: int) -> Tensor:
    """Return the largest part of a parameter on one of ``fsdp`` ranks, on ``meta``.

    FSDP2 divides dimension 0 as ``torch.chunk`` does. The first rank has the largest part of each parameter.
    """
    if fsdp == 1 or not parameter.dim():
        return parameter
    rows = -(-parameter.shape[0] // fsdp)
    return torch.empty((rows, *parameter.shape[1:]), dtype=parameter.dtype, device="meta")
