"""One training step without an optimizer: forward, and backward from a gradient of random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from bench.models.architectures import Architecture, Inputs
from bench.ways.general import Forward


@dataclass(frozen=True)
class Setup:
    """How models and inputs are made.

    Attributes:
        device: that they are on.
        seed: of weights, inputs and gradients.
        channels_last: whether images and kernels are in that order, in which convolutions on a CPU copy nothing.
    """

    device: torch.device
    seed: int = 0
    channels_last: bool = False

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor, where and how it is to be."""
        images = self.channels_last and tensor.dim() == 4
        return tensor.to(self.device, memory_format=torch.channels_last if images else torch.preserve_format)


def build(architecture: Architecture, setup: Setup) -> nn.Module:
    """The model, its weights drawn from the seed."""
    torch.manual_seed(setup.seed)
    model: nn.Module = architecture.build().to(setup.device)
    if setup.channels_last:
        model.to(memory_format=torch.channels_last)
    return model


def make_inputs(architecture: Architecture, batch: int, size: int, setup: Setup) -> Inputs:
    """Its inputs, drawn from the seed."""
    torch.manual_seed(setup.seed)
    inputs = architecture.inputs(batch, size)
    if isinstance(inputs, dict):
        return {name: setup.put(tensor) for name, tensor in inputs.items()}
    return tuple(setup.put(tensor) for tensor in inputs)


def loss(forward: Forward, inputs: Inputs, seed: int) -> Tensor:
    """``noise`` of what a forward returns.

    Args:
        forward: of the model.
        inputs: of it.
        seed: of dropout and of the noise.
    """
    torch.manual_seed(seed)
    return noise(forward(**inputs) if isinstance(inputs, dict) else forward(*inputs), seed)


def noise(outputs: object, seed: int = 0) -> Tensor:
    """A number whose gradient in every output of a forward is noise.

    No more memory than a plan knows of: a cross-entropy would keep a copy of its input, which for language models is as
    large as all else. The outputs live until the number does, as in ``y = model(x); loss = criterion(y)``.

    Args:
        outputs: tensors, in whatever they are returned in.
        seed: of the noise.
    """
    found = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    total: Tensor = _Noise.apply(seed, *found)
    return total


class _Noise(Function):
    """A number whose gradient in each of ``outputs`` is drawn when backward starts."""

    @staticmethod
    def forward(ctx: Any, seed: int, *outputs: Tensor) -> Tensor:
        ctx.seed, ctx.outputs = seed, outputs
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        generator = torch.Generator(ctx.outputs[0].device).manual_seed(ctx.seed)
        drawn = (torch.randn(one.shape, generator=generator, dtype=one.dtype, device=one.device) for one in ctx.outputs)
        return None, *drawn
