"""The stored form of a batch or group norm's input by one operator of the CPU, which makes no tensor of normalised
elements: ``compressed`` and ``decompressed`` do what ``norms.Normalizer`` does in several passes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actcore import Compressed, GroupAffine, Layout
from actcore.codec import made, noise_key
from actcore.layout import is_contiguous
from actcore.ops import below_autograd
from integrations.plain import has_elements

CHANNELS = 0
"""In the place of a number of groups: a statistic is over a channel of all samples."""

_COMPRESS = torch.ops.actcore.group_affine_standardized_compress.default
_DECOMPRESS = torch.ops.actcore.group_affine_standardized_decompress.default
_MANY = 16  # samples, of which each takes a call
_MOST = 4096  # elements of a group that these two take
_DTYPES = (torch.float32, torch.float64)  # of which torch's kernel has statistics of the same dtype


class _Order(NamedTuple):
    """How the channels of a tensor lie in memory, as the operators are told.

    Attributes:
        channels: that follow each other, where they are last; else 0.
        inner: how many rows of them, or elements end to end, have the same statistics.
        each: channels of a statistic that stands in the tables once for each; 0 for tables as they are.
    """

    channels: int
    inner: int
    each: int


def compressed(codec: GroupAffine, groups: int, tensor: Tensor, seed: Any, stream: Any) -> Compressed | None:
    """A tensor's stored form: codes, bounds and ``Float[2, statistics]``; ``None`` where there is no such operator.

    Args:
        codec: what it is by; with its bits, groups of elements and rounding.
        groups: of channels that a sample has a statistic each for, or ``CHANNELS``.
        tensor: with channels first or last in memory.
        seed, stream: of the noise.
    """
    if tensor.device.type != "cpu" or tensor.dtype not in _DTYPES or codec.group_size > _MOST:
        return None
    if torch.compiler.is_compiling() or not (isinstance(seed, int) and isinstance(stream, int)):
        return None
    if not has_elements(tensor):
        return None
    layout = Layout.of(tensor)
    order = _order(layout, groups)
    if order is None or not _gains(codec, tensor.numel(), tensor.dtype):
        return None
    tensor = tensor.detach()
    statistics = _statistics(tensor, groups, order)
    mean, scale = _tables(statistics, order)
    factor = scale.clamp(min=least_deviation(scale.dtype)).reciprocal_()
    stochastic, key = codec.rounding == "stochastic", noise_key(tensor, seed, stream)
    payload = below_autograd(
        _COMPRESS, layout.flatten(tensor), mean, factor, order.channels, order.inner, codec.bits, codec.group_size,
        stochastic, *key,
    )  # fmt: skip
    return made(codec, (*payload, statistics), layout, tensor.dtype)


def decompressed(codec: GroupAffine, groups: int, stored: Compressed) -> Tensor | None:
    """The tensor, with the rounding error of its elements as they are normalised; ``None`` as there."""
    codes, bounds, statistics = stored.payload
    if codes.device.type != "cpu" or codec.group_size > _MOST or torch.compiler.is_compiling():
        return None
    layout = stored.layout
    order = _order(layout, groups)
    if order is None:
        return None
    flat: Tensor = below_autograd(
        _DECOMPRESS, codes, bounds, *_tables(statistics, order), math.prod(layout.shape), order.channels, order.inner,
        codec.bits, codec.group_size,
    )  # fmt: skip
    return layout.restore(flat)


def least_deviation(dtype: torch.dtype) -> float:
    """By which elements are divided at least, as those of a constant channel are, whose deviation is none. Its square
    is a number still: differences that the variance has lost do not become large ones."""
    return math.sqrt(torch.finfo(dtype).tiny)


@lru_cache(maxsize=1024)
def _order(layout: Layout, groups: int) -> _Order | None:
    """``None`` for a tensor that has gaps, or channels neither first nor last."""
    shape, strides = layout
    if len(shape) < 2 or 0 in shape:
        return None
    samples, channels, *rest = shape
    inner = math.prod(rest)
    each = 1 if groups == CHANNELS else channels // groups
    if is_contiguous(layout) and (groups != CHANNELS or inner > 1):
        return _Order(0, each * inner, 0)
    expected, step = [1], channels
    for size in reversed(rest):
        expected.insert(1, step)
        step *= size
    if not is_contiguous(layout) and list(strides) != [step, *expected]:
        return None
    return _Order(channels, samples * inner, 0) if groups == CHANNELS else _Order(channels, inner, each)


@lru_cache(maxsize=1024)
def _gains(codec: GroupAffine, numel: int, dtype: torch.dtype) -> bool:
    return codec.stored_bytes(numel, dtype) < numel * dtype.itemsize


def _tables(statistics: Tensor, order: _Order) -> tuple[Tensor, Tensor]:
    mean, scale = statistics.unbind()
    return (mean.repeat_interleave(order.each), scale.repeat_interleave(order.each)) if order.each else (mean, scale)


def _statistics(tensor: Tensor, groups: int, order: _Order) -> Tensor:
    """Means and deviations: ``Float[2, count]``. A batch norm's own kernel takes them in a fraction of the time of a
    reduction over several dimensions."""
    if groups == CHANNELS:
        mean, variance = _moments(tensor)
    elif not order.channels:
        mean, variance = _moments(tensor.view(1, len(tensor) * groups, -1))
    elif len(tensor) > _MANY:
        variance, mean = torch.var_mean(tensor.unflatten(1, (groups, -1)).flatten(3), (2, 3), correction=0)
        mean, variance = mean.view(-1), variance.view(-1)
    else:  # of the channels of each sample, which have as many elements each
        means, variances = zip(*map(_moments, tensor.split(1)), strict=True)
        each, within = (torch.stack(found).view(len(tensor) * groups, -1) for found in (means, variances))
        mean = each.mean(1)
        variance = within.mean(1) + (each - mean[:, None]).square_().mean(1)
    return torch.stack([mean, variance.sqrt()])


def _moments(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel."""
    mean, variance = torch.batch_norm_update_stats(tensor, None, None, 0.0)
    return mean, variance
