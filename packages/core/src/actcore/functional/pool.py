"""Max pooling that keeps the place of each maximum in its window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actcore.functional.arguments import check_float
from actcore.fused import MaxPool
from actcore.pooling import pooled_size
from actcore.stored import stands_for

_Sizes = int | Sequence[int]


def max_pool1d(
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """``torch.nn.functional.max_pool1d``: ``Float["n c l"]`` or ``Float["c l"]``; see ``max_pool2d``."""
    return _max_pool(1, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Compute ``torch.nn.functional.max_pool2d``, keeping ``ceil(log2(window))`` bits per output.

    ``x`` is ``Float["n c h w"]`` or ``Float["c h w"]``. torch keeps an int64 per output element, and the input. Values,
    the choice among equal maxima and NaN, and the shape are torch's. Backward sums in a fixed order on every device, so
    it gives the same bits each time.

    Args:
        x: the image; the output has the same memory order.
        kernel_size: an int or one per dimension; a window has at most 256 elements.
        stride: an int or one per dimension; ``None`` takes ``kernel_size``.
        padding: an int or one per dimension, at most half of the kernel; padded elements are never the maximum.
        dilation: an int or one per dimension.
        ceil_mode: let a last window reach beyond the input.

    Raises:
        TypeError: ``x`` is not a float32, float64, float16 or bfloat16 tensor.
        ValueError: an option is out of range, the output would be empty, or ``x`` has another number of dimensions.
    """
    return _max_pool(2, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d(
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """``torch.nn.functional.max_pool3d``: ``Float["n c d h w"]`` or ``Float["c d h w"]``; see ``max_pool2d``."""
    return _max_pool(3, x, kernel_size, stride, padding, dilation, ceil_mode)


def _max_pool(
    dims: int,
    x: Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None,
    padding: _Sizes,
    dilation: _Sizes,
    ceil_mode: bool,
) -> Tensor:
    check_float(x)
    if x.dim() not in (dims + 1, dims + 2):
        raise ValueError(f"x must have {dims + 1} or {dims + 2} dimensions for max_pool{dims}d, got {x.dim()}")
    kernel = _numbers("kernel_size", kernel_size, dims, 1)
    strides = kernel if stride is None or stride == [] else _numbers("stride", stride, dims, 1)
    pads = _numbers("padding", padding, dims, 0)
    steps = _numbers("dilation", dilation, dims, 1)
    window = 1
    for size in kernel:
        window *= size
    if window > 256:
        raise ValueError(
            f"a window must have at most 256 elements, so that an index fits in 8 bits, got {window} for kernel_size "
            f"{kernel}; use torch.nn.functional.max_pool{dims}d for larger windows"
        )
    for d, size in enumerate(x.shape[-dims:]):
        # As torch: only its pooling of one dimension counts what dilation adds.
        half = (steps[d] * (kernel[d] - 1) + 1) // 2 if dims == 1 else kernel[d] // 2
        if pads[d] > half:
            raise ValueError(f"padding must be at most half of the kernel, {half}, got {pads[d]}")
        if pooled_size(size, kernel[d], strides[d], pads[d], steps[d], ceil_mode) < 1 or size < 1:
            raise ValueError(
                f"kernel_size {kernel} with dilation {steps} does not fit into the shape {tuple(x.shape)} with padding "
                f"{pads}; pad the input or take a smaller kernel"
            )
    ordered = x.contiguous()
    stands_for(ordered, x, f"max_pool{dims}d")
    output: Tensor = MaxPool.call(ordered, kernel, strides, pads, steps, bool(ceil_mode))[0]
    if x.is_contiguous():
        return output
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return output.contiguous(memory_format=torch.channels_last)
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return output.contiguous(memory_format=torch.channels_last_3d)
    return output


def _numbers(name: str, value: _Sizes, dims: int, least: int) -> list[int]:
    """``value`` as one int a dimension."""
    numbers = [value] * dims if isinstance(value, int) else list(value)
    if len(numbers) == 1:
        numbers = numbers * dims
    if len(numbers) != dims:
        raise ValueError(f"{name} must be an int or a sequence of {dims} ints, got {value}")
    for number in numbers:
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    return numbers
