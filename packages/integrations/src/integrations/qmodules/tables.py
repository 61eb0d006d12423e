"""Steps for the derivatives of smooth activations: boundaries between the intervals of x, and a level for each."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

Table = tuple[tuple[float, ...], tuple[float, ...]]

# Few-bit backward (Novikov et al., ICML 2023), 3 bits.
_PUBLISHED: dict[tuple[str, int], Table] = {
    ("gelu", 3): (
        (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414),
        (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0),
    ),
}
_PUBLISHED["gelu_tanh", 3] = _PUBLISHED["gelu", 3]

_REACH, _POINTS = 8.0, 1 << 14


@torch.compiler.assume_constant_result  # a table holds numbers, not tensors
def table(function: str, bits: int) -> Table:
    """``2**bits`` intervals and the level of each, for an input of mean 0 and variance 1.

    Where no table was published: neighbouring levels are parted where they are equally far from the derivative, and
    each is its interval's mean (Lloyd, "Least squares quantization in PCM", 1982, on the values of the derivative),
    beginning with intervals as narrow as the derivative is steep there.

    Args:
        function: ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        bits: 1 to 8.
    """
    return _PUBLISHED.get((function, bits)) or _fitted(function, bits)


@lru_cache
def _fitted(function: str, bits: int) -> Table:
    x = torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.float64)
    slope = _derivative(function, x)
    weight = torch.exp(-x * x / 2)
    # Panter and Dite's density of intervals ("Quantization distortion in pulse-count modulation", 1951).
    density = (weight * slope.diff(append=slope[-1:]).square()).pow(1 / 3).cumsum(0)
    edges = torch.searchsorted(density, density[-1] * torch.arange(1, 2**bits, dtype=torch.float64) / 2**bits)
    mass, moment = _sums(weight), _sums(weight * slope)
    for _ in range(_ROUNDS):
        levels = _levels(mass, moment, edges)
        edges = _better(slope, levels, edges)
    levels = _levels(mass, moment, edges)
    return tuple(x[edges].tolist()), tuple(levels.tolist())


_ROUNDS = 50


def _sums(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values.new_zeros(1), values.cumsum(0)])


def _levels(mass: torch.Tensor, moment: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """The mean of the derivative in each interval."""
    ends = torch.cat([edges.new_zeros(1), edges, edges.new_full((1,), len(mass) - 1)])
    return (moment[ends].diff() / mass[ends].diff().clamp(min=math.ulp(0.0))).nan_to_num()


def _better(slope: torch.Tensor, levels: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Each boundary moved to where its two levels are equally far from the derivative, between its neighbours."""
    middle = (levels[1:] + levels[:-1]) / 2
    moved = edges.tolist()
    for i, target in enumerate(middle.tolist()):
        low = moved[i - 1] + 1 if i else 1
        high = int(edges[i + 1]) if i + 1 < len(edges) else len(slope) - 1
        if low >= high:
            continue
        inside = (slope[low:high] - target).sign()
        crossings = (inside[1:] != inside[:-1]).nonzero().flatten() + low + 1
        if len(crossings):
            moved[i] = int(crossings[(crossings - edges[i]).abs().argmin()])
    return torch.tensor(moved)


def _derivative(function: str, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        at = x.clone().requires_grad_()
        if function == "silu":
            value = torch.nn.functional.silu(at)
        else:
            value = torch.nn.functional.gelu(at, approximate="tanh" if function == "gelu_tanh" else "none")
        return torch.autograd.grad(value.sum(), at)[0]
