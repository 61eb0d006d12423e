"""Convolutions, transposed ones among them, whose input is stored by a codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from integrations.qmodules.functions.saving import Saving, placeholder


@dataclass(frozen=True)
class Geometry:
    """The arguments of ``aten::convolution`` behind the tensors, each number once for every spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of ``aten::convolution``."""
        none = (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding or none, self.groups


class Convolution(Function):
    """``aten::convolution`` of a batch; backward is torch's at the stored input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, saving: Saving) -> Tensor:
        ctx.geometry, ctx.shape = geometry, x.shape
        ctx.bias_sizes = None if bias is None else bias.shape
        saving.save(ctx, x if ctx.needs_input_grad[1] else None, weight)
        output: Tensor = torch.ops.aten.convolution(x, weight, bias, *geometry.arguments)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saving.restore(ctx, 1)
        ctx.saving.observe(gradient)
        if x is None:  # the weight is frozen
            x = placeholder(gradient, ctx.shape)
        found = torch.ops.aten.convolution_backward(
            gradient, x, weight, ctx.bias_sizes, *ctx.geometry.arguments, ctx.needs_input_grad[:3]
        )
        return *found, None, None
