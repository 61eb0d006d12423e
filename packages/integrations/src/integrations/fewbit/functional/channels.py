"""Which channels of a norm's input its output still tells, and what the others need.

A norm's output is ``y = w * n + b``, rounded, and backward needs ``n = (y - b) / w``. The rounding of y, at most
``u |y|`` with the unit roundoff u of its dtype, becomes

    |error of n| <= u |y| / |w| <= u (|n| + |b| / |w|).

Where y is below the smallest normal number t it may be 0, and the error ``t / |w|``. So a channel's *loss*
``max(|b|, t / u) / |w|`` times u bounds what it adds to the error. A channel with a loss above ``1 / sqrt(u)``, whose
error may be above ``sqrt(u)``, half of the digits, is not read from y: 16 for bfloat16, 45 for float16, 4,096 for
float32. A weight of 0 has lost all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from integrations._utils.plain_tensor_types import has_elements


def capacity(channels: int) -> int:
    """For how many channels their normalised input may be kept beside the output: 1/32 of them."""
    return max(1, channels // 32)


def loss_limit(dtype: torch.dtype) -> float:
    """The greatest loss with which a channel is read from an output of this dtype."""
    return 1 / math.sqrt(torch.finfo(dtype).eps / 2)


def losses(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``Float[Tensor, "channels"]``: each channel's loss in an output of this dtype; infinite for a weight of 0."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    smallest = torch.finfo(dtype).tiny / (torch.finfo(dtype).eps / 2)
    scale = weight.detach().to(wide).abs().flatten()
    if bias is None:
        return smallest / scale
    return bias.detach().to(wide).abs().flatten().clamp_min(smallest) / scale


def looking_is_free(tensor: Tensor) -> bool:
    """Whether the host may look at a tensor's values without waiting for a device."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def too_many_lost(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, limit: float) -> bool:
    """Whether more channels have a loss above ``limit`` than can be kept. The host looks, and waits for a device."""
    return _lost(weight, bias, dtype, limit) > capacity(weight.numel())


def channels_to_keep(weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> int | None:
    """How many channels are kept beside an output of this dtype; ``None`` where these would not be enough.

    On the CPU as many as are lost, mostly none. On a device, which the host cannot look at without waiting, always
    ``capacity``, and the gradients of a channel that is lost nevertheless are NaN.
    """
    if weight is None:
        return 0
    room = capacity(weight.numel())
    if not looking_is_free(weight):
        return room
    if not has_elements(weight):  # a forecast: mostly none are lost
        return 0
    lost = _lost(weight, bias, dtype, loss_limit(dtype))
    return lost if lost <= room else None


def most_lost(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, count: int) -> Tensor:
    """``Int64[Tensor, "count"]``: the channels with the greatest losses."""
    return losses(weight, bias, dtype).topk(count, sorted=False).indices


def divisor(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, kept: Tensor | None) -> Tensor:
    """``Float[Tensor, "channels"]``: what the output less the bias is divided by: the weight, 1 for a channel that is
    kept, and NaN for another one that is lost."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    lost = ~(losses(weight, bias, dtype) <= loss_limit(dtype))  # a NaN is no number that it could be read from
    scale = weight.to(wide).flatten().masked_fill(lost, math.nan)
    return scale if kept is None else scale.index_fill(0, kept, 1.0)


def _lost(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, limit: float) -> int:
    return int((~(losses(weight, bias, dtype) <= limit)).sum())
