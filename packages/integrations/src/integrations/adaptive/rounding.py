"""The variance model of stochastic rounding: how large an error each width makes, computed from the data.

An element that lies at the fraction ``f`` between two codes is rounded up with probability ``f``, so the variance of
its error is ``step**2 * f * (1 - f)``, whatever the distribution of the data.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTHS = range(1, 9)

# Groups of a tensor that are looked at, evenly spread: 65,536 elements of 256 a group.
_SAMPLED = 256


def rounding_energies(flat: Tensor, group_size: int) -> Tensor:
    """The expected squared error of ``GroupAffine`` with 1 to 8 bits, summed over the elements.

    Large tensors are sampled: 256 groups, evenly spread.

    Args:
        flat: ``Float[Tensor, "n"]``, in the order in which the codec groups them.
        group_size: elements that share bounds.

    Returns:
        ``Float64[Tensor, "8"]``, on the device of ``flat``; NaN where an element is not finite.
    """
    if not flat.numel():
        return torch.zeros(len(WIDTHS), dtype=torch.float64, device=flat.device)
    whole = flat.numel() // group_size
    groups = flat[: whole * group_size].view(whole, group_size) if whole else flat.view(1, -1)
    sampled = groups[:: max(1, whole // _SAMPLED)]
    sampled = sampled if sampled.dtype is torch.float64 else sampled.float()
    low, high = sampled.aminmax(dim=1, keepdim=True)
    spread = high - low
    position = torch.where(spread > 0, (sampled - low) / spread, 0)
    energies = []
    for bits in WIDTHS:
        steps = 2**bits - 1
        fraction = (position * steps).frac()
        energies.append((fraction * (1 - fraction) * (spread / steps).square()).sum(dtype=torch.float64))
    return torch.stack(energies) * (flat.numel() / max(1, sampled.numel()))


def rounding_noise(flat: Tensor, group_size: int, energy: Tensor, generator: torch.Generator) -> Tensor:
    """Noise like that of rounding: as large in each group as its range makes it, ``energy`` in all."""
    spreads = _spreads(flat, group_size)
    signs = torch.empty_like(spreads).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    scale = (energy / spreads.double().square().sum().clamp(min=torch.finfo(torch.float64).tiny)).sqrt()
    return signs.mul_(spreads).mul_(scale.to(spreads.dtype))


def _spreads(flat: Tensor, group_size: int) -> Tensor:
    """The range of each element's group; the bounds are stored exactly, so a decompressed tensor has them, too."""
    whole = flat.numel() // group_size * group_size
    parts = []
    if whole:
        low, high = flat[:whole].view(-1, group_size).aminmax(dim=1)
        parts.append((high - low).repeat_interleave(group_size))
    if whole < flat.numel():
        low, high = flat[whole:].aminmax()
        parts.append((high - low).expand(flat.numel() - whole))
    return torch.cat(parts)
