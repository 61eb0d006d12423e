"""Max pooling with window indices in few bits, by way of torch's own indices; slow and readable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from actcore.pooling import pooled_shape, window_bits
from actcore.reference.bits import pack_bits, unpack_bits

_POOLS: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """torch's maxima, and each one's index in its window."""
    dims = len(kernel)
    planes = x.reshape(1, -1, *x.shape[x.dim() - dims :])
    output, indices = _POOLS[dims](planes, kernel, stride, padding, dilation, ceil_mode, return_indices=True)
    shape = pooled_shape(x.shape, kernel, stride, padding, dilation, ceil_mode)
    packed, _ = window_index_pack(indices.view(shape), x.shape, kernel, stride, padding, dilation, ceil_mode)
    return output.view(shape), packed


def max_pool_backward(gradient: Tensor, packed: Tensor, input_shape: Sequence[int], *options: object) -> Tensor:
    """Sums in the order of the outputs, in the type that elements are computed in."""
    indices = window_index_unpack(packed, input_shape, *options)  # type: ignore[arg-type]
    dims = len(options[0])  # type: ignore[arg-type]
    size = torch.Size(input_shape[len(input_shape) - dims :]).numel()
    compute = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    sums = torch.zeros(torch.Size(input_shape).numel() // max(size, 1), size, dtype=compute)
    pairs = zip(indices.view(len(sums), -1), gradient.to(compute).reshape(len(sums), -1), strict=True)
    for plane, (places, values) in enumerate(pairs):
        for place, value in zip(places.tolist(), values, strict=True):
            if place >= 0:
                sums[plane, place] += value
    return sums.view(*input_shape).to(gradient.dtype)


def window_index_pack(
    indices: Tensor,
    input_shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """Looks every index up among its window's places."""
    places = _places(input_shape, kernel, stride, padding, dilation, ceil_mode)
    flat = indices.reshape(-1, places.shape[0], 1)
    found = (flat == places) & (places >= 0)
    codes = found.to(torch.uint8).argmax(-1).to(torch.uint8)
    misfit = torch.tensor([int(not found.any(-1).all())], dtype=torch.int32)
    return pack_bits(codes, window_bits(kernel)), misfit


def window_index_unpack(
    packed: Tensor,
    input_shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The place that each code names; -1 in the padding."""
    shape = torch.Size(pooled_shape(input_shape, kernel, stride, padding, dilation, ceil_mode))
    places = _places(input_shape, kernel, stride, padding, dilation, ceil_mode)
    codes = unpack_bits(packed, window_bits(kernel), shape.numel()).long().view(-1, places.shape[0], 1)
    return places.expand(codes.shape[0], -1, -1).gather(2, codes).view(shape)


def _places(
    input_shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The flat place in its plane of every element of every window, row by row; -1 for places in the padding."""
    dims = len(kernel)
    sizes = list(input_shape[len(input_shape) - dims :])
    outs = pooled_shape(sizes, kernel, stride, padding, dilation, ceil_mode)
    rows = []
    for out in product(*(range(n) for n in outs)):
        row = []
        for inner in product(*(range(n) for n in kernel)):
            at = [o * s - p + i * d for o, s, p, i, d in zip(out, stride, padding, inner, dilation, strict=True)]
            flat = 0
            for place, size in zip(at, sizes, strict=True):
                flat = flat * size + place
            row.append(flat if all(0 <= a < n for a, n in zip(at, sizes, strict=True)) else -1)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)
