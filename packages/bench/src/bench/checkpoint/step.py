"""One training step without an optimizer: forward, and backward from a gradient of random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from bench.checkpoint.architectures import Architecture, Inputs
from bench.checkpoint.contenders import Forward


def build(architecture: Architecture, device: torch.device, seed: int) -> nn.Module:
    """The model, its weights drawn from that seed."""
    torch.manual_seed(seed)
    return architecture.build().to(device)


def inputs_of(architecture: Architecture, batch: int, size: int, device: torch.device, seed: int) -> Inputs:
    """Its inputs, drawn from that seed."""
    torch.manual_seed(seed)
    inputs = architecture.inputs(batch, size)
    if isinstance(inputs, dict):
        return {name: tensor.to(device) for name, tensor in inputs.items()}
    return tuple(tensor.to(device) for tensor in inputs)


def loss(forward: Forward, inputs: Inputs, seed: int) -> Tensor:
    """A number whose gradient in every output of the forward is noise.

    No more memory than a plan knows of: a cross-entropy would keep a copy of its input, which for language models is as
    large as all else. The outputs live until the number does, as in ``y = model(x); loss = criterion(y)``.

    Args:
        forward: of the model.
        inputs: of it.
        seed: of dropout and of the noise.
    """
    torch.manual_seed(seed)
    outputs = forward(**inputs) if isinstance(inputs, dict) else forward(*inputs)
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
