"""Pooling: the place of each maximum in its window, and nothing at all for averages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function

import actcore
from actcore.origins import note_origin, with_origin
from actcore.stored import Stored, announce, is_heard
from integrations._utils.torch_internals import adaptive_avg_pool2d, adaptive_avg_pool2d_backward
from integrations.qmodules.layers.activations import DTYPES
from integrations.qmodules.layers.base import QLayer


class AveragePoolFunction(Function):
    """An average pool of torch and its backward, to which the input's values do not matter."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        pool: Callable[..., Tensor],
        backward: Callable[..., Tensor],
        arguments: tuple[Any, ...],
        backward_arguments: tuple[Any, ...],
    ) -> Tensor:
        ctx.like, ctx.call = (x.shape, x.stride()), (backward, backward_arguments)
        note_origin(ctx, x)
        if is_heard(ctx):
            announce(Stored(x, getattr(pool, "__name__", "avg_pool").strip("_"), "input", "shape"))
        return pool(x, *arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        backward, arguments = ctx.call
        # Never written and never read: kernels look at its shape and memory format, which one element would not have.
        like = torch.empty_strided(*ctx.like, dtype=gradient.dtype, device=gradient.device)
        return with_origin(ctx, backward(gradient, like, *arguments)), None, None, None, None


class _Pool(QLayer):
    _rounds = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def _takes(self, input: Tensor) -> bool:
        return self._stores(input) and input.dtype in DTYPES


class _MaxPool(_Pool):
    dims: ClassVar[int]
    pool: ClassVar[Callable[..., Tensor]]
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool
    return_indices: bool

    def forward(self, input: Tensor) -> Any:
        # torch's own where it gives indices away, or an index in the window takes more than 8 bits.
        if self.return_indices or math.prod(_each(self.kernel_size, self.dims)) > 256 or not self._takes(input):
            return super().forward(input)
        options = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        try:
            return type(self).pool(input, *options)
        except ValueError:
            super().forward(input)  # what torch refuses, torch shall refuse
            raise


class QMaxPool1d(_MaxPool, nn.MaxPool1d):
    """``torch.nn.MaxPool1d`` that keeps ``ceil(log2(window))`` bits per output. Values and gradients are torch's."""

    counterpart = nn.MaxPool1d
    dims = 1
    pool = staticmethod(actcore.max_pool1d)


class QMaxPool2d(_MaxPool, nn.MaxPool2d):
    """``torch.nn.MaxPool2d`` that keeps ``ceil(log2(window))`` bits per output. Values and gradients are torch's."""

    counterpart = nn.MaxPool2d
    dims = 2
    pool = staticmethod(actcore.max_pool2d)


class QMaxPool3d(_MaxPool, nn.MaxPool3d):
    """``torch.nn.MaxPool3d`` that keeps ``ceil(log2(window))`` bits per output. Values and gradients are torch's."""

    counterpart = nn.MaxPool3d
    dims = 3
    pool = staticmethod(actcore.max_pool3d)


class QAvgPool2d(_Pool, nn.AvgPool2d):
    """``torch.nn.AvgPool2d`` that keeps nothing. Values and gradients are torch's bit for bit."""

    counterpart = nn.AvgPool2d

    def forward(self, input: Tensor) -> Tensor:
        if not self._takes(input) or input.dim() not in (3, 4):
            return super().forward(input)
        kernel, stride, padding = (_each(value, 2) for value in (self.kernel_size, self.stride, self.padding))
        arguments = (kernel, stride, padding, self.ceil_mode, self.count_include_pad, self.divisor_override)
        aten = torch.ops.aten
        output: Tensor = AveragePoolFunction.apply(
            input, aten.avg_pool2d, aten.avg_pool2d_backward, arguments, arguments
        )
        return output


class QAdaptiveAvgPool2d(_Pool, nn.AdaptiveAvgPool2d):
    """``torch.nn.AdaptiveAvgPool2d`` that keeps nothing. Values and gradients are torch's bit for bit."""

    counterpart = nn.AdaptiveAvgPool2d

    def forward(self, input: Tensor) -> Tensor:
        size = self.output_size
        given = list(size) if isinstance(size, (tuple, list)) else [size, size]
        # Of 1 x 1 torch takes the mean, and other lengths than 2 it refuses.
        if not self._takes(input) or input.dim() not in (3, 4) or given == [1, 1] or len(given) != 2:
            return super().forward(input)
        given = [input.shape[d - 2] if number is None else number for d, number in enumerate(given)]
        output: Tensor = AveragePoolFunction.apply(
            input, adaptive_avg_pool2d, adaptive_avg_pool2d_backward, (given,), ()
        )
        return output


def _each(value: Any, dims: int) -> list[Any]:
    """An argument of a pool, once for every dimension: torch takes a number, a tuple or a list."""
    given = list(value) if isinstance(value, (tuple, list)) else [value]
    return given * dims if len(given) == 1 else given
