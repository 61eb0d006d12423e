"""Convolutions and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from actcore.stored import Stored, announce, is_heard
from integrations._utils.autocast import as_matmul
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.layers.saving import Saving, placeholder
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision


def pad(x: Tensor, padding: Sequence[int], mode: str) -> Tensor:
    """``F.pad``. Under ``torch.compile`` it is torch's own: a gradient inside of a backward is not traced."""
    if torch.compiler.is_compiling():
        return F.pad(x, padding, mode)
    padded: Tensor = _Pad.apply(x, padding, mode)
    return padded


class _Pad(Function):
    """``F.pad`` in any mode. It is linear, so its gradient is the same wherever it is taken: at zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, padding: Sequence[int], mode: str) -> Tensor:
        ctx.like, ctx.arguments = (x.shape, x.stride()), (padding, mode)
        if is_heard(ctx) and mode in ("reflect", "replicate"):  # torch's keep their input
            announce(Stored(x, "pad", "input", "shape"))
        return F.pad(x, padding, mode)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            shape, strides = ctx.like
            at = torch.empty_strided(shape, strides, dtype=gradient.dtype, device=gradient.device).requires_grad_()
            padded = F.pad(at, *ctx.arguments)
            (found,) = torch.autograd.grad(padded, at, gradient, create_graph=twice)
        return found, None, None


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


class ConvolutionFunction(Function):
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


class _AnyConv(QLayer):
    """What convolutions of both directions share.

    Args:
        group: which of the level's ``bits`` is the layer's average.
    """

    weight: Tensor
    bias: Tensor | None
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, group)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        places = math.prod(self.kernel_size)
        return LayerPrecision(level, "linear", group, places, self.groups, transposed=isinstance(self, _ConvTranspose))

    def _convolve(self, input: Tensor, geometry: Geometry) -> Tensor | None:
        """The convolution; ``None`` where torch's own forward is the right one."""
        x, weight, bias = as_matmul(input, self.weight, self.bias)
        assert x is not None
        assert weight is not None
        if x.dtype != weight.dtype:  # which torch refuses
            return None
        batched = x.dim() == len(self.kernel_size) + 2
        x = x if batched else x.unsqueeze(0)
        saving = self._saving(x, weight)
        if saving is None:
            return None
        output: Tensor = ConvolutionFunction.apply(x, weight, bias, geometry, saving)
        return output if batched else output.squeeze(0)

    def _takes(self, input: Tensor) -> bool:
        """Whether this forward stores its input; what torch refuses, torch shall refuse."""
        dims = len(self.kernel_size)
        return self._stores(input, self.weight, self.bias) and input.dim() in (dims + 1, dims + 2)


class _Conv(_AnyConv):
    _reversed_padding_repeated_twice: list[int]

    def forward(self, input: Tensor) -> Tensor:
        output = None
        if self._takes(input):
            output = self._convolve(*self._padded(input))
        return super().forward(input) if output is None else output

    def _padded(self, input: Tensor) -> tuple[Tensor, Geometry]:
        """The input, padded as far as the convolution does not, and the convolution."""
        none = (0,) * len(self.kernel_size)
        if self.padding_mode != "zeros":
            padded = pad(input, self._reversed_padding_repeated_twice, str(self.padding_mode))
            return padded, Geometry(self.stride, none, self.dilation, self.groups)
        if self.padding == "same":
            # An odd number of places is one more after the last element than before the first.
            totals = [step * (size - 1) for step, size in zip(self.dilation, self.kernel_size, strict=True)]
            if any(total % 2 for total in totals):
                input = F.pad(input, [place for total in reversed(totals) for place in (0, total % 2)])
            return input, Geometry(self.stride, tuple(total // 2 for total in totals), self.dilation, self.groups)
        padding = none if self.padding == "valid" else cast("tuple[int, ...]", self.padding)
        return input, Geometry(self.stride, padding, self.dilation, self.groups)


class _ConvTranspose(_AnyConv):
    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output = None
        if self.padding_mode == "zeros" and self._takes(input):
            geometry = Geometry(
                self.stride,
                cast("tuple[int, ...]", self.padding),
                self.dilation,
                self.groups,
                True,
                tuple(self._output_places(input, output_size)),
            )
            output = self._convolve(input, geometry)
        return super().forward(input, output_size) if output is None else output

    def _output_places(self, input: Tensor, output_size: list[int] | None) -> list[int]:
        """torch's ``output_padding`` for that size; it refuses sizes that there are none for."""
        dims = len(self.kernel_size)
        found: list[int] = self._output_padding(  # type: ignore[operator]
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        return found


class QConv1d(_Conv, nn.Conv1d):
    """``torch.nn.Conv1d`` whose input is stored in a few bits."""

    counterpart = nn.Conv1d


class QConv2d(_Conv, nn.Conv2d):
    """``torch.nn.Conv2d`` whose input is stored in a few bits."""

    counterpart = nn.Conv2d


class QConv3d(_Conv, nn.Conv3d):
    """``torch.nn.Conv3d`` whose input is stored in a few bits."""

    counterpart = nn.Conv3d


class QConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` whose input is stored in a few bits."""

    counterpart = nn.ConvTranspose1d


class QConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` whose input is stored in a few bits."""

    counterpart = nn.ConvTranspose2d


class QConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` whose input is stored in a few bits."""

    counterpart = nn.ConvTranspose3d
