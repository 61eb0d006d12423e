"""What a fit minimises: the weighted squared error of a derivative over a domain, as sums over narrow cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from integrations.policies.codebooks.slopes import Slope

Weight = str | Callable[[Tensor], Tensor]
"""``"uniform"``, ``"normal"`` (the density of N(0, 1)), or a torch function of ``x`` that is not negative."""

WEIGHTS = ("uniform", "normal")

# Gauss and Legendre's rule of four points on -1 to 1: exact for polynomials of degree 7, so a smooth derivative's
# integral over a cell of 1/1000 of the domain has an error far below rounding.
_NODES = (-0.8611363115940526, -0.3399810435848563, 0.3399810435848563, 0.8611363115940526)
_SHARES = (0.17392742256872692, 0.32607257743127307, 0.32607257743127307, 0.17392742256872692)

# The steepness is measured at so many points, and the narrow cells follow from it.
_SURVEY = 1 << 14


class Objective:
    """``∫ weight(x) (derivative(x) - step(x))² dx`` over a domain, and over ``|x|`` where the derivative is even."""

    def __init__(self, slope: Slope, domain: tuple[float, float], weight: Weight, even: bool = False) -> None:
        self.slope = slope
        self._domain = _checked_domain(domain)
        self._weight = _checked_weight(weight)
        self._even = even
        low, high = self._domain
        ends = sorted((abs(low), abs(high)))
        # If zero is inside, the half line up to the nearer end counts twice.
        self._bends = ends[:1] if even and low < 0 < high else []
        self.low, self.high = (0.0 if low < 0 < high else ends[0], ends[1]) if even else (low, high)

    def cells(self, count: int) -> Tensor:
        """``count + 1`` edges or a few less: half of the cells equally wide, half narrow where the derivative is steep.

        The best intervals, many of them, have a density of ``(weight * f''**2)**(1/3)`` (Panter and Dite, "Quantization
        distortion in pulse-count modulation", 1951), so these cells are about as much narrower everywhere.
        """
        even = self._line(self.low, self.high, count - count // 2 + 1)
        survey = self._line(self.low, self.high, _SURVEY + 1)
        self.slope.require_finite(torch.cat([even, survey]))
        density = (self.weight(survey)[1:] * self.slope(survey).diff().square()).pow(1 / 3)
        total = torch.cat([density.new_zeros(1), density.cumsum(0)])
        edges = [even, even.new_tensor(self._bends)]
        if total[-1] > 0:
            shares = total[-1] * self._line(0.0, 1.0, count // 2 + 1)[1:-1]
            at = torch.searchsorted(total, shares).clamp(1, _SURVEY)
            inside = (shares - total[at - 1]) / density[at - 1].clamp(min=1e-300)
            edges.append(survey[at - 1] + inside.clamp(0, 1) * (survey[at] - survey[at - 1]))
        merged = torch.cat(edges).sort().values
        # Edges that nearly meet would make cells of no width.
        wide = merged.diff() > 1e-12 * (self.high - self.low)
        return torch.cat([merged[:1], merged[1:][wide]])

    def nodes(self, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points of the cells, the derivative there, and the weight, cell by cell: ``Float64["cells 4"]`` each."""
        middle, half = (edges[1:] + edges[:-1]) / 2, edges.diff() / 2
        x = middle[:, None] + half[:, None] * edges.new_tensor(_NODES)
        slope = self.slope(x.flatten())
        if not bool(slope.isfinite().all()):
            self.slope.require_finite(x.flatten())
        weight = self.weight(x.flatten()).view_as(x) * 2 * half[:, None] * edges.new_tensor(_SHARES)
        return x, slope.view_as(x), weight

    def weight(self, x: Tensor) -> Tensor:
        """The weight at ``x``, together with that at ``-x`` where the derivative is even."""
        if not self._even:
            return self._checked(x)
        low, high = self._domain
        right = torch.where((x >= low) & (x <= high), self._checked(x), 0.0)
        return right + torch.where((-x >= low) & (-x <= high) & (x != 0), self._checked(-x), 0.0)

    def _checked(self, x: Tensor) -> Tensor:
        weight = self._weight(x)
        if not isinstance(weight, Tensor) or weight.shape != x.shape:
            raise ValueError("weight must map a tensor to one of its shape, element by element")
        weight = weight.detach().double()
        wrong = ~(weight >= 0) | weight.isinf()
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise ValueError(f"weight must be finite and not negative, got {weight[at].item()} at x={x[at]:.6g}")
        return weight

    @staticmethod
    def _line(low: float, high: float, points: int) -> Tensor:
        return torch.linspace(low, high, points, dtype=torch.float64, device="cpu")


def _checked_domain(domain: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = map(float, domain)
    except (TypeError, ValueError):
        raise ValueError(f"domain must be two finite numbers that ascend, got {domain!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"domain must be two finite numbers that ascend, got {tuple(domain)}")
    return low, high


def _checked_weight(weight: Weight) -> Callable[[Tensor], Tensor]:
    if callable(weight):
        return weight
    if weight == "uniform":
        return torch.ones_like
    if weight == "normal":
        return lambda x: torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    raise ValueError(f"weight must be {' or '.join(map(repr, WEIGHTS))}, or a torch function of x, got {weight!r}")
