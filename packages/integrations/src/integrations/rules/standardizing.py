"""The stored form of a batch or group norm's input by one operator of the CPU, which makes no tensor of normalised
elements: ``compressed`` and ``decompressed`` do what ``norms.Normalizer`` does in several passes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from actcore import Compressed, GroupAffine, Layout
from actcore.codec import made, noise_key
from actcore.layout import is_contiguous
from actcore.ops import below_autograd
from integrations.common.plain import has_elements

CHANNELS = 0
"""In the place of a number of groups: a statistic is over a channel of all samples."""

COMPRESS = torch.ops.actcore.group_affine_standardized_compress.default
DECOMPRESS = torch.ops.actcore.group_affine_standardized_decompress.default
_MOST = 4096  # elements of a group that these two take


def compressed(
    codec: GroupAffine, groups: int, count: int, tensor: Tensor, seed: Any, stream: Any
) -> Compressed | None:
    """A tensor's stored form: codes, bounds and ``Float[2, count]``; ``None`` where there is no such operator.

    Args:
        codec: what it is by; with its bits, groups of elements and rounding.
        groups: of channels that a sample has a statistic each for, or ``CHANNELS``.
        count: statistics.
        tensor: with channels first or last in memory.
        seed, stream: of the noise.
    """
    if tensor.device.type != "cpu" or torch.compiler.is_compiling() or not has_elements(tensor):
        return None
    if not (isinstance(seed, int) and isinstance(stream, int)):
        return None
    layout = Layout.of(tensor)
    order = order_for(codec, groups, layout, tensor.dtype)
    if order is None:
        return None
    tensor = tensor.detach()
    payload = below_autograd(
        COMPRESS, layout.flatten(tensor), codec.bits, codec.group_size, codec.rounding == "stochastic",
        *noise_key(tensor, seed, stream), count, *order,
    )  # fmt: skip
    return made(codec, payload, layout, tensor.dtype)


def decompressed(codec: GroupAffine, groups: int, stored: Compressed) -> Tensor | None:
    """The tensor, with the rounding error of its elements as they are normalised; ``None`` as there."""
    codes, bounds, statistics = stored.payload
    if codes.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    layout = stored.layout
    order = order_of(layout, groups, codec.group_size)
    if order is None:
        return None
    flat: Tensor = below_autograd(
        DECOMPRESS, codes, bounds, statistics, math.prod(layout.shape), *order, codec.bits, codec.group_size
    )
    return layout.restore(flat)


def least_deviation(dtype: torch.dtype) -> float:
    """By which elements are divided at least, as those of a constant channel are, whose deviation is none. Its square
    is a number still: differences that the variance has lost do not become large ones."""
    return math.sqrt(torch.finfo(dtype).tiny)


def order_for(codec: GroupAffine, groups: int, layout: Layout, dtype: torch.dtype) -> tuple[int, int] | None:
    """The same of a tensor that is to be stored; ``None``, too, for one that would not become smaller."""
    return order_of(layout, groups, codec.group_size) if _gains(codec, math.prod(layout.shape), dtype) else None


@lru_cache(maxsize=1024)
def order_of(layout: Layout, groups: int, group_size: int) -> tuple[int, int] | None:
    """How many rows of channels, or elements end to end, have the same statistics, and how many channels follow each
    other where they are last in memory; else 0. ``None`` for a tensor that has gaps, or channels neither first nor
    last, and for larger groups than the operators take."""
    shape, strides = layout
    if len(shape) < 2 or 0 in shape or group_size > _MOST:
        return None
    samples, channels, *rest = shape
    inner = math.prod(rest)
    if is_contiguous(layout) and (groups != CHANNELS or inner > 1):
        return (inner if groups == CHANNELS else channels // groups * inner), 0
    expected, step = [1], channels
    for size in reversed(rest):
        expected.insert(1, step)
        step *= size
    if not is_contiguous(layout) and list(strides) != [step, *expected]:
        return None
    return (samples * inner if groups == CHANNELS else inner), channels


@lru_cache(maxsize=1024)
def _gains(codec: GroupAffine, numel: int, dtype: torch.dtype) -> bool:
    return codec.stored_bytes(numel, dtype) < numel * dtype.itemsize
