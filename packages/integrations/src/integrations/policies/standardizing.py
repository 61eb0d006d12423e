"""Stores a batch or group norm's input through one operator, which makes no tensor of normalised elements:
``compressed`` and ``decompressed`` do what ``norms.Normalizer`` does in several passes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from actcore import Compressed, GroupAffine, Layout, missing_on
from actcore.codec import made, noise_key
from actcore.layout import is_contiguous
from actcore.ops import below_autograd
from integrations._utils.plain_tensor_types import has_elements

CHANNELS = 0
"""In the place of a number of groups: each channel of all samples has one statistic."""

COMPRESS = torch.ops.actcore.group_affine_standardized_compress.default
DECOMPRESS = torch.ops.actcore.group_affine_standardized_decompress.default
ACTIVATE = torch.ops.actcore.group_affine_standardized_activation.default
_MOST = 4096  # the largest group, in elements, that these operators take


def compressed(
    codec: GroupAffine, groups: int, count: int, tensor: Tensor, seed: Any, stream: Any, operator: Any = COMPRESS
) -> Compressed | None:
    """A tensor's stored form: codes, bounds and ``Float[2, count]``; ``None`` if there is no such operator for it.

    Args:
        codec: gives the bits, elements of a group and rounding.
        groups: the number of groups of channels, each of which has a statistic in each sample; or ``CHANNELS``.
        count: how many statistics there are.
        tensor: with channels first or last in memory.
        seed, stream: of the noise.
        operator: is called as ``COMPRESS`` is.
    """
    if not has_operators(tensor.device) or torch.compiler.is_compiling() or not has_elements(tensor):
        return None
    if not (isinstance(seed, int) and isinstance(stream, int)):
        return None
    layout = Layout.of(tensor)
    order = order_for(codec, groups, layout, tensor.dtype)
    if order is None:
        return None
    tensor = tensor.detach()
    payload = below_autograd(
        operator, layout.flatten(tensor), codec.bits, codec.group_size, codec.rounding == "stochastic",
        *noise_key(tensor, seed, stream), count, *order,
    )  # fmt: skip
    return made(codec, payload, layout, tensor.dtype)


def decompressed(codec: GroupAffine, groups: int, stored: Compressed) -> Tensor | None:
    """The tensor, with the rounding error of its normalised elements; ``None`` as for ``compressed``."""
    codes, bounds, statistics = stored.payload
    if not has_operators(codes.device) or torch.compiler.is_compiling():
        return None
    layout = stored.layout
    order = get_order(layout, groups, codec.group_size)
    if order is None:
        return None
    flat: Tensor = below_autograd(
        DECOMPRESS, codes, bounds, statistics, math.prod(layout.shape), *order, codec.bits, codec.group_size
    )
    return layout.restore(flat)


def activated(
    stored: Compressed,
    weight: Tensor | None,
    bias: Tensor | None,
    added: Tensor | None,
    function: str,
    epsilon: float = 0.0,
) -> Tensor | None:
    """What follows a batch or group norm, in one pass over its stored input.

    Args:
        stored: the input, stored by the statistics of this norm.
        weight, bias: ``Float[channels]``, the norm's; ``None`` for none.
        added: is added to the norm's result: a tensor of the input's shape and dtype; ``None`` for none.
        function: what the sum goes through: ``none``, ``relu``, ``silu``, ``gelu`` or ``gelu_tanh``.
        epsilon: the norm's, if the stored deviations are without it.

    Returns:
        the tensor, laid out as the input was; ``None`` as for ``decompressed``.
    """
    codes, bounds, statistics = stored.payload
    layout, codec = stored.layout, stored.codec
    if not isinstance(codec, GroupAffine) or not has_operators(codes.device) or torch.compiler.is_compiling():
        return None
    order = get_order(layout, CHANNELS, codec.group_size)
    if order is None:
        return None
    scales, shifts = (
        statistics.new_full((layout.shape[1],), default) if given is None else given.detach().to(statistics.dtype)
        for given, default in ((weight, 1.0), (bias, 0.0))
    )
    if epsilon:
        scales = scales * statistics[1] * (statistics[1].square() + epsilon).rsqrt()
    if added is not None:
        if added.stride() != layout.strides:
            added = bounds.new_empty(math.prod(layout.shape)).as_strided(*layout).copy_(added)
        added = layout.flatten(added.detach())
    flat: Tensor = below_autograd(
        ACTIVATE, codes, bounds, scales, shifts, added, math.prod(layout.shape), *order, codec.bits, codec.group_size,
        function,
    )  # fmt: skip
    return layout.restore(flat)


def has_operators(device: torch.device) -> bool:
    """Whether tensors on a device can be stored so."""
    return device.type == "cpu" or (device.type == "cuda" and not missing_on(device))


def least_deviation(dtype: torch.dtype) -> float:
    """The least divisor, for the elements of a constant channel, whose deviation is 0. Its square does not underflow,
    so that differences that the variance has lost do not become large."""
    return math.sqrt(torch.finfo(dtype).tiny)


def undo_epsilon(factor: Tensor, epsilon: float) -> Tensor:
    """The deviations of elements that a norm multiplies by ``factor = 1 / sqrt(variance + epsilon)``.

    A stored input is divided by them. Division by ``1 / factor`` would leave elements of less variance than epsilon so
    small beside other channels of their group that they are rounded away. A deviation is at least a thousandth of
    epsilon's root: below that, the variance is lost in the rounding of the factor.
    """
    least = max(1e-6 * epsilon, least_deviation(factor.dtype) ** 2)
    return factor.pow(-2).sub_(epsilon).clamp_(min=least).sqrt_()


def order_for(codec: GroupAffine, groups: int, layout: Layout, dtype: torch.dtype) -> tuple[int, int] | None:
    """``get_order`` for a tensor to be stored; also ``None`` for one that would not become smaller."""
    return get_order(layout, groups, codec.group_size) if _gains(codec, math.prod(layout.shape), dtype) else None


@lru_cache(maxsize=1024)
def get_order(layout: Layout, groups: int, group_size: int) -> tuple[int, int] | None:
    """How many rows of channels, or elements end to end, have the same statistics; and how many channels follow each
    other if they are last in memory, else 0. ``None`` for a tensor with gaps, or with channels neither first nor last,
    and for larger groups than the operators take."""
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
