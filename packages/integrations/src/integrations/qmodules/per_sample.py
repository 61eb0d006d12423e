"""Bits for each sample of a layer's input: the exact optimum, on the tensor's device.

Samples of one input have the same size, so a bit more costs the same bytes in each. The least variance within a budget
is then had by taking the largest gains, as long as each further bit of a sample gains less than the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor

# What is looked at, evenly spread: groups of one sample for its ranges; groups of the whole input, and elements of
# each, for the profile.
_RANGES, _PROFILE, _ELEMENTS = 64, 64, 256

# What is NaN or infinite comes before, what is 0 after all others, and among themselves these get equal widths. A bit
# gains 1e-42 of a sensitivity or more (``convex``), which is no 0 of float64 for either.
_UNKNOWN, _IDLE = 1e250, 1e-250


def range_energies(rows: Tensor, group_size: int, weights: Tensor | None = None) -> Tensor:
    """The sum over each row's elements of the squared range of their group.

    Of a row of more than 64 groups, 64 or more that are evenly spread stand for all.

    Args:
        rows: ``Float[Tensor, "rows size"]``, in the order in which the codec groups them.
        group_size: elements that share bounds; the last group of a row may be smaller.
        weights: of ``group_means``, for each group of every row (or of one row, for all): what its elements count.

    Returns:
        ``Float64[Tensor, "rows"]``; NaN for a row with an element that is not finite.
    """
    count, size = rows.shape
    whole, every = _whole(size, group_size)
    if not whole or not rows.numel():
        energies = torch.zeros(count, dtype=torch.float64, device=rows.device)
    else:
        squares = _range(_groups(rows, whole, group_size)[:, ::every]).square()
        if weights is not None:
            squares = squares * weights[:, :whole:every]
        energies = squares.mean(1, dtype=torch.float64) * (whole * group_size)
    if whole * group_size < size and rows.numel():
        rest = _range(rows[:, whole * group_size :]).double().square() * (size - whole * group_size)
        energies = energies + (rest if weights is None else rest * weights[:, -1])
    return energies


def group_means(rows: Tensor, group_size: int) -> Tensor:
    """The mean of each group: ``Float[Tensor, "rows groups"]``. Arguments as for ``range_energies``."""
    size = rows.shape[1]
    whole, _ = _whole(size, group_size)
    means = [_groups(rows, whole, group_size).mean(-1)] if whole else []
    if whole * group_size < size:
        means.append(rows[:, whole * group_size :].mean(1, keepdim=True))
    return torch.cat(means, 1)


def rounding_profile(rows: Tensor, group_size: int) -> Tensor:
    """What rounding does at each width: an element's error variance in units of its group's squared range.

    An element at the fraction ``f`` between two codes is rounded up with probability ``f``, so its variance is
    ``step**2 * f * (1 - f)``. The paper bounds ``f * (1 - f)`` by 1/4: 3/2 of its mean over evenly spread data, 1/6,
    and 3 times that of what ReLU returns, where a zero is a code and has no error.

    Args:
        rows: as for ``range_energies``; 64 groups stand for all.

    Returns:
        ``Float64[Tensor, "8"]`` for 1 to 8 bits: falling, and each by less than the one before. ``1 / (6 * (2**bits -
        1)**2)``, which is that of evenly spread data, where no group has a finite range above 0.
    """
    steps = _steps(rows)
    usual = 1 / (6 * steps.square())
    count, size = rows.shape
    if not rows.numel():
        return usual
    if size >= group_size:
        whole = size // group_size
        groups = _groups(rows, whole, group_size)
        # Evenly over rows and groups: the stride along groups changes which ones are seen from row to row.
        every = max(1, count * whole // _PROFILE)
        at = torch.arange(0, count * whole, every, device=rows.device)
        sampled = groups[at // whole, at % whole]
    else:
        sampled = rows[:: max(1, count // _PROFILE)]
    sampled = sampled.float() if sampled.dtype is not torch.float64 else sampled
    low = sampled.amin(1, keepdim=True)
    spread = sampled.amax(1, keepdim=True) - low
    fine = spread.isfinite() & (spread > 0)
    sampled = sampled[:, :: max(1, sampled.shape[1] // _ELEMENTS)]
    position = torch.where(fine, (sampled - low) / spread, 0).to(torch.float32)
    fraction = (position * steps.float().view(-1, 1, 1)).frac()
    # The groups' squared ranges weigh them, in units of the largest so that none overflows.
    weights = torch.where(fine, spread, 0).double()
    weights = (weights / weights.max()).square()
    variance = ((fraction - fraction.square()).mean(-1, dtype=torch.float64) * weights.squeeze(1)).sum(1)
    measured = variance / (weights.sum() * steps.square())
    return torch.where(measured.isfinite() & fine.any(), convex(measured), usual)


def convex(profile: Tensor) -> Tensor:
    """The profile's lower convex hull, bent a little, so that no bit gains as much as the one before, and none nothing.

    Data that lie on the codes of one width (0, 1/3, 2/3 and 1 of the range on those of 2 and 4 bits, not of 3) have
    profiles that are not convex. Between the corners of the hull lies what two samples of different widths reach.
    """
    gains = profile[:-1] - profile[1:]
    number = gains.numel()
    before = torch.cat([gains.new_zeros(1), gains.cumsum(0)])
    place = torch.arange(number, device=gains.device)
    length = place - place[:, None] + 1
    # The means of all runs from a (row) to b (column); Barlow et al., "Statistical inference under order restrictions",
    # 1972: a falling sequence's least-squares fit is min over a of max over b of these.
    means = torch.where(length > 0, (before[1:] - before[:-1, None]) / length.clamp(min=1), -torch.inf)
    largest = means.flip(1).cummax(1).values.flip(1)
    hull = torch.where(length > 0, largest, torch.inf).amin(0).clamp(min=0)
    above = torch.cat([hull.flip(0).cumsum(0).flip(0), hull.new_zeros(1)])
    least = profile.amax().clamp(min=1e-30) * 1e-6 / _steps(profile).square()
    return profile[-1].clamp(min=0) + above + least


def sample_bits(sensitivities: Tensor, profile: Tensor, total: int, most: int = 8) -> Tensor:
    """The widths that make the variance least: ``min sum(sensitivities[n] * profile[bits[n] - 1])``.

    The problem of ActNN (Chen et al., ICML 2021), section 4.2, solved exactly. No host synchronisation.

    Args:
        sensitivities: ``Float[Tensor, "rows"]``, not negative. A NaN or infinite one comes before all finite ones and
            one of zero last; among such, as among equal ones, widths differ by at most a bit.
        profile: ``Float64[Tensor, "8"]``, convex: what one unit of sensitivity costs at each width.
        total: the widths' sum, from ``rows`` to ``rows * most``.
        most: the largest width.

    Returns:
        ``UInt8[Tensor, "rows"]`` on the device of ``sensitivities``.
    """
    count = sensitivities.numel()
    if total <= count or most == 1:
        return torch.ones(count, dtype=torch.uint8, device=sensitivities.device)
    gains = _gains(sensitivities, profile, most).flatten()
    largest = gains.topk(min(total - count, gains.numel()), sorted=False).indices
    # Not in place: in a capture the zeros are real, and what is largest is not known.
    taken = torch.zeros(gains.numel(), dtype=torch.uint8, device=gains.device).scatter(0, largest, 1)
    return taken.view(count, -1).sum(1, dtype=torch.uint8).add_(1)


def costs_of_totals(sensitivities: Tensor, profile: Tensor, most: int = 8) -> tuple[range, Tensor]:
    """The least variance within each of several budgets: what ``sample_bits`` reaches, without the widths.

    Args:
        sensitivities, profile, most: as for ``sample_bits``.

    Returns:
        The budgets, sums of widths about a quarter of a bit a row apart, and the variance within each:
        ``Float64[Tensor, "budgets"]``, not finite where a sensitivity is not.
    """
    values = sensitivities.double()
    count = values.numel()
    gains = (values[:, None] * (profile[: most - 1] - profile[1:most])).flatten().sort(descending=True).values
    gained = torch.cat([gains.new_zeros(1), gains.cumsum(0)])
    step = -(-count // 4)
    costs = values.sum() * profile[0] - gained[::step]
    return range(count, count * most + 1, step), costs.clamp(min=0)


def _gains(sensitivities: Tensor, profile: Tensor, most: int) -> Tensor:
    """What each further bit of each row takes off the variance, in any one unit."""
    values = sensitivities.double().nan_to_num(_UNKNOWN, posinf=_UNKNOWN).clamp(_IDLE, _UNKNOWN)
    return values[:, None] * (profile[: most - 1] - profile[1:most])


def _whole(size: int, group_size: int) -> tuple[int, int]:
    """Groups of a row that are complete, and the distance of those that are looked at."""
    whole = size // group_size
    return whole, max(1, whole // _RANGES)


def _groups(rows: Tensor, whole: int, group_size: int) -> Tensor:
    groups: Tensor = rows[:, : whole * group_size].unflatten(1, (whole, group_size))
    return groups


def _range(groups: Tensor) -> Tensor:
    # Two passes: on the CPU torch's aminmax takes 8 times as long as both (2 million floats, torch 2.15).
    high, low = groups.amax(-1), groups.amin(-1)
    return high.to(torch.promote_types(groups.dtype, torch.float32)) - low


def _steps(like: Tensor) -> Tensor:
    """Steps between a group's bounds at each width, made on the device of ``like``: nothing is copied there."""
    return torch.arange(1, 9, dtype=torch.float64, device=like.device).exp2() - 1
