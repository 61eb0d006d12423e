"""Stores a batch or group norm's input through one operator, which makes no tensor of normalised elements:
``compressed`` and ``decompressed`` do what ``norms.Normalizer`` does in several passes.

Autograd saves the input before torch computes the statistics. Inside of ``run_with_statistics`` the stored form is
allocated then, and written when the norm has returned, by the mean and inverse deviation that autograd has saved of it.
Elsewhere the operator computes statistics of its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from actcore import Compressed, GroupAffine, Layout, missing_on
from actcore.codec import made, noise_key
from actcore.layout import is_contiguous
from actcore.ops import below_autograd, group_count, packed_bytes
from actcore.replay import KERNELS
from integrations._utils.plain_tensor_types import has_elements
from integrations._utils.torch_internals import len_torch_dispatch_stack, profiler_enabled

CHANNELS = 0
"""In the place of a number of groups: each channel of all samples has one statistic."""

_COMPRESS = torch.ops.actcore.group_affine_standardized_compress.default
_WRITE = torch.ops.actcore.group_affine_standardized_compress.given
_KERNEL = KERNELS.get("group_affine_standardized_compress")
DECOMPRESS = torch.ops.actcore.group_affine_standardized_decompress.default
_MOST = 4096  # the largest group, in elements, that these two operators take


class _Thread(threading.local):
    """What waits in a thread for its norm's statistics; ``None`` outside of ``run_with_statistics``."""

    pending: list[PendingStore] | None = None


_THREAD = _Thread()


@dataclass(slots=True)
class PendingStore:
    """A norm's input, and its stored form, which is not written yet.

    Attributes:
        elements: the input, in memory order.
        options: bits, elements of a group, whether to round at random, seed and stream.
        order: see ``get_order``.
        parts: codes, bounds and ``Float[2, count]``.
    """

    elements: Tensor
    options: tuple[int, int, bool, int, int]
    order: tuple[int, int]
    parts: tuple[Tensor, Tensor, Tensor]

    def write(self, result: object) -> None:
        """Writes the stored form.

        Args:
            result: the norm's. Without saved statistics, they are computed from the elements.
        """
        count, wide = self.parts[2].shape[1], self.parts[2].dtype
        node = getattr(result, "grad_fn", None)
        found = [getattr(node, name, None) for name in ("_saved_result1", "_saved_result2")]
        if all(isinstance(one, Tensor) and one.numel() == count for one in found):
            # On the CPU, those of bfloat16 parameters are bfloat16. Elements are restored by what they were stored by.
            means, factors = (one.detach().reshape(-1).to(wide) for one in found if one is not None)
            below_autograd(_WRITE, self.elements, *self.options, means, factors, *self.order, *self.parts)
            return
        stored = below_autograd(_COMPRESS, self.elements, *self.options, count, *self.order)
        for part, one in zip(self.parts, stored, strict=True):
            part.copy_(one)


def run_with_statistics(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a norm. The input that autograd saves is stored by the statistics that torch computes."""
    before, _THREAD.pending = _THREAD.pending, []
    pending, result = _THREAD.pending, None
    try:
        result = function(*args, **kwargs)
    finally:  # also what an error leaves: something else may share the stored form
        _THREAD.pending = before
        for store in pending:
            store.write(result)
    return result


def _compress(
    elements: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, count: int, inner: int,
    channels: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return codes, bounds and ``Float[2, count]`` of elements in memory order. Inside of ``run_with_statistics`` they
    are written when the norm returns."""
    options, order = (bits, group_size, stochastic, seed, stream), (inner, channels)
    if _THREAD.pending is None:
        seen = not elements.is_cpu or len_torch_dispatch_stack() or profiler_enabled()
        operator = _COMPRESS if _KERNEL is None or seen else _KERNEL
        found: tuple[Tensor, Tensor, Tensor] = operator(elements, *options, count, *order)
        return found
    numel, dtype, device = elements.numel(), elements.dtype, elements.device
    parts = (
        torch.empty(packed_bytes(numel, bits), dtype=torch.uint8, device=device),
        torch.empty((group_count(numel, group_size), 2), dtype=dtype, device=device),
        torch.empty((2, count), dtype=torch.promote_types(dtype, torch.float32), device=device),
    )
    _THREAD.pending.append(PendingStore(elements, options, order, parts))
    return parts


COMPRESS = _compress
"""Called as the operators are."""


def compressed(
    codec: GroupAffine, groups: int, count: int, tensor: Tensor, seed: Any, stream: Any
) -> Compressed | None:
    """A tensor's stored form: codes, bounds and ``Float[2, count]``; ``None`` if there is no such operator for it.

    Args:
        codec: gives the bits, elements of a group and rounding.
        groups: the number of groups of channels, each of which has a statistic in each sample; or ``CHANNELS``.
        count: how many statistics there are.
        tensor: with channels first or last in memory.
        seed, stream: of the noise.
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
        COMPRESS, layout.flatten(tensor), codec.bits, codec.group_size, codec.rounding == "stochastic",
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


def has_operators(device: torch.device) -> bool:
    """Whether tensors on a device can be stored so."""
    return device.type == "cpu" or (device.type == "cuda" and not missing_on(device))


def least_deviation(dtype: torch.dtype) -> float:
    """The least divisor, for the elements of a constant channel, whose deviation is 0. Its square does not underflow,
    so that differences that the variance has lost do not become large."""
    return math.sqrt(torch.finfo(dtype).tiny)


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
