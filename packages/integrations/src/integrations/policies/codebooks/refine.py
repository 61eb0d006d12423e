"""From the best boundaries on a grid to the best ones near them: Lloyd's rounds on the line itself."""

from __future__ import annotations

import torch
from torch import Tensor

from integrations.policies.codebooks.objective import Objective

_ROUNDS = 40
_HALVINGS = 26

# The rounds end with one that gains less than this, relative to the error.
_GAIN = 1e-7


def score(objective: Objective, edges: Tensor, boundaries: Tensor) -> tuple[Tensor, float]:
    """The best level of each interval between boundaries, and the error with these: ``Float64["boundaries+1"]``.

    An interval that has no weight gets the plain mean of the derivative.
    """
    merged = torch.cat([edges, boundaries]).sort().values
    merged = torch.cat([merged[:1], merged[1:][merged.diff() > 0]])
    x, slope, weight = objective.nodes(merged)
    piece = torch.bucketize(x, boundaries)
    zeros = boundaries.new_zeros(len(boundaries) + 1)

    def summed(terms: Tensor) -> Tensor:
        return zeros.index_add(0, piece.flatten(), terms.flatten())

    mass = summed(weight)
    plain = summed(slope) / summed(torch.ones_like(slope))
    levels = torch.where(mass > 0, summed(weight * slope) / mass, plain)
    return levels, float((weight * (slope - levels[piece]).square()).sum())


def refine(objective: Objective, edges: Tensor, boundaries: Tensor) -> tuple[Tensor, Tensor, float]:
    """Moves boundaries to where their two levels are equally far from the derivative, and recomputes the levels, in
    rounds.

    Each round reduces the error (Lloyd, "Least squares quantization in PCM", 1982), until one gains nothing. Returns
    the best boundaries found, with their levels and error: they are no worse than the given ones.
    """
    levels, error = score(objective, edges, boundaries)
    best = boundaries, levels, error
    for _ in range(_ROUNDS if len(boundaries) else 0):
        boundaries = _moved(objective, boundaries, levels)
        levels, error = score(objective, edges, boundaries)
        gain = best[2] - error
        if gain > 0:
            best = boundaries, levels, error
        if gain <= _GAIN * best[2]:
            break
    return best


def _moved(objective: Objective, boundaries: Tensor, levels: Tensor) -> Tensor:
    """Each boundary moved to the next place where the error starts to grow, at most half of the way to its
    neighbours."""
    middle, rise = (levels[1:] + levels[:-1]) / 2, (levels[1:] - levels[:-1]).sign()

    def pull(x: Tensor) -> Tensor:
        # The sign of the error's derivative with respect to the boundary.
        return rise * (objective.slope(x) - middle)

    ends = torch.cat([boundaries.new_tensor([objective.low]), boundaries, boundaries.new_tensor([objective.high])])
    gaps = ends.diff() / 2
    direction = -pull(boundaries).sign()
    near, far = boundaries, boundaries + torch.where(direction < 0, -gaps[:-1], gaps[1:]) * direction.abs()
    # Nearer places first, so that the nearest turn is found if there are several.
    for part in (1 / 64, 1 / 16, 1 / 4):
        at = boundaries + (far - boundaries) * part
        turned = pull(at) * direction >= 0
        far = torch.where(turned, at, far)
    for _ in range(_HALVINGS):
        at = (near + far) / 2
        onwards = pull(at) * direction < 0
        near, far = torch.where(onwards, at, near), torch.where(onwards, far, at)
    return (near + far) / 2
