"""ReLU and dropout with a mask of one bit an element, slow and readable."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore.reference.bits import pack_bits, unpack_bits
from actcore.reference.philox import noise_halves


def relu_mask(x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient passes where x is positive or NaN."""
    return torch.where(x < 0, 0.0, x), pack_bits((~(x <= 0)).to(torch.uint8), 1)


def dropout_mask(x: Tensor, p: float, seed: int, stream: int, draw: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Kept where 16 bits of noise are not below p, and then divided by the rate at which elements are kept."""
    seed += 0 if draw is None else int(draw)
    threshold = round(p * 65536)
    halves = noise_halves(seed, stream, x.numel())
    mask = pack_bits((halves >= threshold).to(torch.uint8), 1)
    return mask_backward(x, mask, 65536 / (65536 - threshold) if threshold < 65536 else 0.0), mask


def mask_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient times the scale where the mask is 1."""
    compute = gradient.to(torch.float64 if gradient.dtype == torch.float64 else torch.float32)
    kept = unpack_bits(mask, 1, gradient.numel()).view(gradient.shape).bool()
    return torch.where(kept, compute * compute.new_tensor(scale), 0.0).to(gradient.dtype)
