"""``Standing``: what of a training is there all the time, whatever the inputs: weights, gradients, optimizer states."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from integrations.estimate.fit.layers import Blocks
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
        gathered: bytes of the units that FSDP2 has gathered at once; 0 on one rank.
        unreduced: bytes of the gradients that FSDP2 holds whole at the most, before it adds them up over the ranks: of
            one layer, and of the rest of the model, whose last ones backward makes at its end.
    """

    parameters: int
    trained: int
    weights: int
    gradients: int
    states: int
    step: int
    gathered: int = 0
    unreduced: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are there from the first step's end on, the gradients left out."""
        return self.weights + self.states + self.gathered


def count_static_memory(
    model: nn.Module, optimizer: Optimizer, together: bool, ranks: int, blocks: Blocks | None
) -> Standing:
    """What is there for a model.

    On several ranks, each has its part of weights, gradients and states. Of the layers that are alike, which are taken
    to be FSDP2's units, two are whole at once, one in use and the next; the rest of the model is one more unit, which
    stays whole from forward to backward. A unit's gradients are whole until all of them are there.

    Args:
        model: the model, of any device.
        optimizer: what trains it.
        together: whether the optimizer updates all parameters at once, as on a GPU.
        ranks: how many processes share it by FSDP2.
        blocks: the layers that are alike, if there are any.
    """
    parameters = list(model.parameters())
    trained = [one for one in parameters if one.requires_grad]
    gathered = unreduced = 0
    if ranks > 1:
        layers = [] if blocks is None else list(model.get_submodule(blocks.path).parameters())
        count = 1 if blocks is None else blocks.size
        of_layers, trained_there = sum(map(nbytes, layers)), sum(nbytes(one) for one in layers if one.requires_grad)
        gathered = sum(map(nbytes, parameters)) - of_layers + min(2, count) * of_layers // count
        unreduced = sum(map(nbytes, trained)) - trained_there + trained_there // count

    def shared(count: int) -> int:
        return math.ceil(count / ranks)

    return Standing(
        parameters=sum(one.numel() for one in parameters),
        trained=sum(one.numel() for one in trained),
        weights=shared(sum(map(nbytes, parameters))) + sum(map(nbytes, model.buffers())),
        gradients=shared(sum(map(nbytes, trained))),
        states=shared(optimizer.states(trained)),
        step=shared(optimizer.temporaries(trained, together)),
        gathered=gathered,
        unreduced=unreduced,
    )
