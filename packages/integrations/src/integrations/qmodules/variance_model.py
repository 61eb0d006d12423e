"""What the model of rounding says about one layer: docs/qmodules.md, section Precision, has the derivation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import actcore
from integrations.qmodules.device_rows import DeviceRows
from integrations.qmodules.forwards import squared_norms
from integrations.qmodules.layers import QLayer


def predicted_variance(layer: QLayer, x: Tensor, gradient: Tensor, codec: actcore.Codec | None) -> float:
    """The variance of the gradient of the layer's weight that storing ``x`` by ``codec`` makes.

    Args:
        layer: a convolution, a linear layer or a norm.
        x: its input, ``Float[Tensor, "batch ..."]``.
        gradient: that of its output.
        codec: one of those that ``LayerPrecision.codec`` gives.

    Returns:
        The sum over the weight's elements; 0 where ``codec`` keeps ``x`` exactly.
    """
    if average_bits(codec) is None or not x.numel():
        return 0.0
    inner = codec.inner if isinstance(codec, actcore.Offload) else codec
    if x.dim() < 2:
        x, gradient = x[None], gradient[None]
    own = isinstance(inner, DeviceRows) or x.numel() // len(x) >= layer.precision.level.group_size
    forward = layer.precision.describe(x, own)
    gain: float | Tensor
    if layer.precision.kind == "other":
        gradient, gain = _normalised(layer, x, gradient), x.shape[0] / x.numel()
    else:
        gain = layer.precision.gain(forward, gradient)
    squares = squared_norms(gradient)
    if squares.numel() != forward.energies.numel():
        squares = squares.mean()
    if isinstance(inner, DeviceRows) and inner.bits is not None:
        unit = forward.profile[inner.bits.long() - 1]
    else:
        assert isinstance(inner, actcore.GroupAffine)
        unit = forward.profile[inner.bits - 1]
    variance: Tensor = forward.energies * squares * gain * unit
    return variance.sum().item()


def average_bits(codec: actcore.Codec | None) -> float | None:
    """Bits of an element of a row, on average; ``None`` where it is kept exactly."""
    inner = codec.inner if isinstance(codec, actcore.Offload) else codec
    if isinstance(inner, DeviceRows) and inner.bits is not None:
        return inner.total / inner.bits.numel()
    return float(inner.bits) if isinstance(inner, actcore.GroupAffine) else None


def _normalised(layer: QLayer, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient over the standard deviation by which the layer divides: its weight's gradient sums these times x."""
    x = x.float()
    if isinstance(layer, nn.GroupNorm):
        groups = x.reshape(x.shape[0], layer.num_groups, -1)
        deviation = groups.var(2, correction=0).add(layer.eps).sqrt()
        return (gradient.reshape(groups.shape).float() / deviation[..., None]).flatten(1)
    if isinstance(layer, nn.LayerNorm):
        dims = tuple(range(-len(layer.normalized_shape), 0))
        return gradient.float() / x.var(dims, correction=0, keepdim=True).add(layer.eps).sqrt()
    assert isinstance(layer, nn.RMSNorm)
    dims = tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(x.dtype).eps if layer.eps is None else layer.eps
    return gradient.float() / x.square().mean(dims, keepdim=True).add(eps).sqrt()
