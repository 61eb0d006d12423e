"""The shapes of max pooling, as torch computes them."""

from __future__ import annotations

from collections.abc import Sequence


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Outputs of one dimension. With ``ceil_mode`` a last window that would start in the right padding is left out."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1
    return out


def pooled_shape(
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[int]:
    """The shape of the output: the last ``len(kernel)`` dimensions of ``shape`` are pooled."""
    leading = len(shape) - len(kernel)
    options = zip(shape[leading:], kernel, stride, padding, dilation, strict=True)
    return [*shape[:leading], *(pooled_size(*numbers, ceil_mode) for numbers in options)]


def window_bits(kernel: Sequence[int]) -> int:
    """Bits that the index of a place in the window takes: ``ceil(log2(window))``, at least 1."""
    window = 1
    for size in kernel:
        window *= size
    return max(1, (window - 1).bit_length())
