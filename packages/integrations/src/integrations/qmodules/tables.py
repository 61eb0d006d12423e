"""Steps for the derivatives of smooth activations: boundaries between the intervals of x, and a level for each."""

from __future__ import annotations

from functools import lru_cache

import torch

Table = tuple[tuple[float, ...], tuple[float, ...]]

_REACH, _POINTS, _ROUNDS = 10.0, 1 << 14, 50


@torch.compiler.assume_constant_result  # a table holds numbers, not tensors
def table(function: str, bits: int) -> Table:
    """``2**bits`` intervals and the level of each, with the least squared error over -10 to 10.

    That is the criterion of "Few-bit backward" (Novikov et al., ICML 2023), whose tables these are up to the search for
    them: neighbouring levels are parted where they are equally far from the derivative, and each is its interval's mean
    (Lloyd, "Least squares quantization in PCM", 1982, on the values of the derivative), beginning with intervals as
    narrow as the derivative is steep there. Far from zero the levels are the derivative's own, 0 and 1, nearly: inputs
    of any scale are served.

    Args:
        function: ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        bits: 1 to 8.
    """
    return _fitted(function, bits)


@lru_cache
def _fitted(function: str, bits: int) -> Table:
    x = torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.float64, device="cpu")
    slope = _derivative(function, x)
    # Panter and Dite's density of intervals ("Quantization distortion in pulse-count modulation", 1951).
    density = slope.diff(append=slope[-1:]).square().pow(1 / 3).cumsum(0)
    edges = torch.searchsorted(density, density[-1] / 2**bits * torch.arange(1, 2**bits, device="cpu"))
    sums = torch.cat([slope.new_zeros(1), slope.cumsum(0)])
    for _ in range(_ROUNDS):
        edges = _better(slope, _levels(sums, edges), edges)
    return tuple(x[edges].tolist()), tuple(_levels(sums, edges).tolist())


def _levels(sums: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """The mean of the derivative in each interval."""
    ends = torch.cat([edges.new_zeros(1), edges, edges.new_full((1,), len(sums) - 1)])
    return sums[ends].diff() / ends.diff()


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
    return torch.tensor(moved, device="cpu")


def _derivative(function: str, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        at = x.clone().requires_grad_()
        if function == "silu":
            value = torch.nn.functional.silu(at)
        else:
            value = torch.nn.functional.gelu(at, approximate="tanh" if function == "gelu_tanh" else "none")
        return torch.autograd.grad(value.sum(), at)[0]
