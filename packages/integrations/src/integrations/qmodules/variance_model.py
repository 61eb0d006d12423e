"""What the model of rounding says about one layer: docs/qmodules.md, section Precision, has the derivation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import actcore
from integrations.qmodules.device_rows import DeviceRows, rows_of
from integrations.qmodules.forwards import squared_norms
from integrations.qmodules.layers import QLayer
from integrations.qmodules.per_sample import group_means, range_energies


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
    group_size = layer.precision.level.group_size
    own = isinstance(inner, DeviceRows) or x.numel() // len(x) >= group_size
    forward = layer.precision.describe(x, own)
    energies = forward.energies
    if layer.precision.kind == "other":
        rows, counted = (t if own else t[None] for t in (x, _inverse_variance(layer, x)))
        energies = range_energies(rows_of(rows), group_size, group_means(rows_of(counted), group_size))
    squares = squared_norms(gradient)
    if squares.numel() != energies.numel():
        squares = squares.mean()
    if isinstance(inner, DeviceRows) and inner.bits is not None:
        unit = forward.profile[inner.bits.long() - 1]
    else:
        assert isinstance(inner, actcore.GroupAffine)
        unit = forward.profile[inner.bits - 1]
    variance: Tensor = energies * squares * layer.precision.gain(forward, gradient) * unit
    return variance.sum().item()


def average_bits(codec: actcore.Codec | None) -> float | None:
    """Bits of an element of a row, on average; ``None`` where it is kept exactly."""
    inner = codec.inner if isinstance(codec, actcore.Offload) else codec
    if isinstance(inner, DeviceRows) and inner.bits is not None:
        return inner.total / inner.bits.numel()
    return float(inner.bits) if isinstance(inner, actcore.GroupAffine) else None


def _inverse_variance(layer: QLayer, x: Tensor) -> Tensor:
    """What the weight of a norm of single samples counts the variance of each element of ``x``: the inverse of the one
    that the layer divides by, expanded to its shape."""
    x = x.float()
    if isinstance(layer, nn.GroupNorm):
        groups = x.reshape(x.shape[0], layer.num_groups, -1)
        counted = 1 / groups.var(2, correction=0, keepdim=True).add(layer.eps)
        return counted.expand(groups.shape).reshape(x.shape)
    if isinstance(layer, nn.LayerNorm):
        dims = tuple(range(-len(layer.normalized_shape), 0))
        return (1 / x.var(dims, correction=0, keepdim=True).add(layer.eps)).expand(x.shape)
    assert isinstance(layer, nn.RMSNorm)
    dims = tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(x.dtype).eps if layer.eps is None else layer.eps
    return (1 / x.square().mean(dims, keepdim=True).add(eps)).expand(x.shape)
