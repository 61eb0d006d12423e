"""The variance model of stochastic rounding: how large an error each width makes, computed from the data.

An element that lies at the fraction ``f`` between two codes is rounded up with probability ``f``, so the variance of
its error is ``step**2 * f * (1 - f)``, whatever the distribution of the data.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTHS = range(1, 9)

# Of a large tensor only so many groups are sampled, evenly spread: 65,536 elements in groups of 256.
_SAMPLED = 256

_PART = 1 << 18  # elements that are converted to doubles at once


def rounding_energies(flat: Tensor, group_size: int, scales: Tensor | None = None) -> Tensor:
    """The expected squared error of ``GroupAffine`` with 1 to 8 bits, summed over the elements.

    Large tensors are sampled: 256 groups, evenly spread.

    Args:
        flat: ``Float[Tensor, "n"]``, in the order in which the codec groups them.
        group_size: elements that share bounds.
        scales: ``Float[Tensor, "n"]``, what the rounded elements are multiplied with; ``None`` for 1.

    Returns:
        ``Float64[Tensor, "8"]``, on the device of ``flat``; NaN where an element is not finite.
    """
    if not flat.numel():
        return torch.zeros(len(WIDTHS), dtype=torch.float64, device=flat.device)
    whole = flat.numel() // group_size
    sampled = _sampled(flat, whole, group_size)
    low, high = sampled.aminmax(dim=1, keepdim=True)
    spread = high - low
    position = torch.where(spread > 0, (sampled - low) / spread, 0)
    if scales is not None:
        spread = spread * _sampled(scales, whole, group_size)
    energies = []
    for bits in WIDTHS:
        steps = 2**bits - 1
        fraction = (position * steps).frac()
        energies.append((fraction * (1 - fraction) * (spread / steps).square()).sum(dtype=torch.float64))
    return torch.stack(energies) * (flat.numel() / max(1, sampled.numel()))


def _sampled(flat: Tensor, whole: int, group_size: int) -> Tensor:
    groups = flat[: whole * group_size].view(whole, group_size) if whole else flat.view(1, -1)
    sampled = groups[:: max(1, whole // _SAMPLED)]
    return sampled if sampled.dtype is torch.float64 else sampled.float()


def rounding_deviations(flat: Tensor, group_size: int, bits: int) -> Tensor:
    """How uncertain the rounding of each element is: its standard deviation, 255 for half a step.

    Returns:
        ``UInt8[Tensor, "n"]``: 0 for elements that are codes already, such as a group's bounds.
    """
    low, spread = _bounds(flat, group_size)
    position = torch.where(spread > 0, (flat - low) / spread, 0)
    fraction = (position * (2**bits - 1)).frac()
    deviations: Tensor = (fraction * (1 - fraction)).sqrt()
    return deviations.mul(510).nan_to_num(0).byte()


def rounding_noise(
    flat: Tensor,
    group_size: int,
    energy: Tensor,
    generator: torch.Generator,
    deviations: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Noise like that of rounding: in each group in proportion to its range, with a total energy of ``energy``.

    Args:
        flat, group_size: as for ``rounding_energies``. A rounded tensor serves as well, since rounding keeps the
            bounds.
        energy: a scalar on the same device.
        generator: of the noise.
        deviations: of each element, from ``rounding_deviations``; ``None`` takes them for equal within a group.
        scales: as for ``rounding_energies``.
    """
    amplitudes = _spreads(flat, group_size)
    if scales is not None:
        amplitudes = amplitudes * scales
    if deviations is not None:
        amplitudes = amplitudes * deviations
    signs = torch.empty_like(amplitudes).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    # In parts: converting a whole tensor to doubles would take twice its memory.
    energies = [torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in amplitudes.split(_PART)]
    scale = (energy / torch.stack(energies).sum().clamp(min=torch.finfo(torch.float64).tiny)).sqrt()
    return signs.mul_(amplitudes).mul_(scale.to(amplitudes.dtype))


def _bounds(flat: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """The lower bound and the range of each element's group, in float32 at least."""
    extremes = _extremes(flat, group_size)
    return _spread_out([low for low, _, _ in extremes], extremes), _spreads(flat, group_size)


def _spreads(flat: Tensor, group_size: int) -> Tensor:
    """The range of each element's group, in float32 at least."""
    extremes = _extremes(flat, group_size)
    return _spread_out([high - low for low, high, _ in extremes], extremes)


_Extremes = list[tuple[Tensor, Tensor, int]]
"""For whole groups, and for the last one if it is not whole: the minima, the maxima, and the number of elements of
each."""


def _extremes(flat: Tensor, group_size: int) -> _Extremes:
    flat = flat if flat.dtype is torch.float64 else flat.float()
    whole = flat.numel() // group_size * group_size
    found: _Extremes = []
    if whole:
        low, high = flat[:whole].view(-1, group_size).aminmax(dim=1)
        found.append((low, high, group_size))
    if whole < flat.numel():
        low, high = flat[whole:].aminmax()
        found.append((low.view(1), high.view(1), flat.numel() - whole))
    return found


def _spread_out(bounds: list[Tensor], extremes: _Extremes) -> Tensor:
    """Bounds of groups for each element."""
    parts = [bound.repeat_interleave(size) for bound, (_, _, size) in zip(bounds, extremes, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
