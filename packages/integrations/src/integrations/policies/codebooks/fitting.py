"""``approximate``: the step function, or the codebook, with the least error for a derivative; ``estimate_error``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, overload

import torch
from torch import Tensor

import actcore
from integrations.policies.codebooks.objective import Objective, Weight
from integrations.policies.codebooks.refine import refine
from integrations.policies.codebooks.slopes import ScalarFunction, Slope
from integrations.policies.codebooks.steps import LevelTable, StepTable

DOMAIN = (-10.0, 10.0)
"""The domain of the paper's tables."""

CELLS = 2000

Parity = Literal["even", "none"]


@overload
def approximate(
    function: ScalarFunction,
    bits: int,
    *,
    domain: tuple[float, float] = DOMAIN,
    weight: Weight = "uniform",
    parity: Parity | None = None,
    rounding: Literal["nearest"] = "nearest",
    derivative: Callable[[Tensor], Tensor] | None = None,
    parameters: Sequence[float] = (),
    cells: int = CELLS,
) -> StepTable: ...
@overload
def approximate(
    function: ScalarFunction,
    bits: int,
    *,
    domain: tuple[float, float] = DOMAIN,
    weight: Weight = "uniform",
    parity: Parity | None = None,
    rounding: Literal["stochastic"],
    derivative: Callable[[Tensor], Tensor] | None = None,
    parameters: Sequence[float] = (),
    cells: int = CELLS,
) -> LevelTable: ...
def approximate(
    function: ScalarFunction,
    bits: int,
    *,
    domain: tuple[float, float] = DOMAIN,
    weight: Weight = "uniform",
    parity: Parity | None = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    derivative: Callable[[Tensor], Tensor] | None = None,
    parameters: Sequence[float] = (),
    cells: int = CELLS,
) -> StepTable | LevelTable:
    """Fits ``2**bits`` levels to the derivative of a scalar function.

    With ``rounding="nearest"`` the levels belong to intervals of ``x``, and minimise ``∫ weight(x) (f'(x) - level)²
    dx`` over the domain, the criterion of "Few-bit backward" (Novikov et al., ICML 2023). Its exact dynamic program
    over ``cells`` narrow intervals (``actcore.fit_steps``) finds them, after which each boundary moves between the
    cells, to where its two levels are equally far from ``f'``. Beyond the domain the last levels hold: for a derivative
    that grows without bound, squared_relu's for one, choose a domain that covers the inputs.

    With ``rounding="stochastic"`` the derivative itself is rounded, up or down at random, to a level beside it. From
    the least value of ``f'`` to the greatest, the levels are where the variance, ``∫ weight(x) (above - f'(x)) (f'(x) -
    below) dx``, is least (``actcore.fit_levels``).

    ::

        fewbit.approximate("gelu", 3)
        fewbit.approximate(lambda x: torch.sin(x) * x, 4, domain=(-6, 6), weight="normal")

    Args:
        function: a name of ``FUNCTIONS``, or a torch function that maps each element by itself; its derivative is
            autograd's, in float64.
        bits: 1 to 8.
        domain: the lowest and the highest ``x`` that count.
        weight: how much each ``x`` counts: ``"uniform"``, ``"normal"`` (the density of N(0, 1)), or a torch function.
        parity: ``"even"`` for a derivative that is an even function of ``x``: the intervals are then of ``|x|``, so
            that none is spent twice, and the error is a third at equal bits. ``None`` knows it of the functions in
            ``FUNCTIONS``; ``"none"`` fits intervals of ``x`` to these, too. Of no meaning for stochastic rounding.
        rounding: ``"nearest"`` or ``"stochastic"``.
        derivative: the derivative as a torch function, where autograd's is not wanted.
        parameters: those of a function in ``FUNCTIONS``, in torch's order; empty for its defaults.
        cells: how many the dynamic program begins with, 2 to 32,000; its time grows with their square.

    Returns:
        A ``StepTable``; with ``rounding="stochastic"`` a ``LevelTable``.

    Raises:
        TypeError: ``function`` or ``derivative`` is no function.
        ValueError: an unknown name, bits or cells out of range, a function that is not elementwise or has no
            derivative, a derivative that is not finite somewhere in the domain (the message says where) or not even
            where ``parity`` says so, a weight that is negative or zero everywhere.
    """
    slope = Slope(function, parameters, derivative)
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f'rounding must be "nearest" or "stochastic", got {rounding!r}')
    if rounding == "stochastic":
        if parity not in (None, "none"):
            raise ValueError(
                f'parity must be None with rounding="stochastic", which has no intervals of x, got {parity!r}'
            )
        return fit_codebooks(slope, (2 ** checked_bits(bits),), domain, weight, cells)[0]
    return fit_tables(slope, (2 ** checked_bits(bits),), domain, weight, parity, cells)[0]


def fit_tables(
    slope: Slope,
    pieces: Sequence[int],
    domain: tuple[float, float] = DOMAIN,
    weight: Weight = "uniform",
    parity: Parity | None = None,
    cells: int = CELLS,
) -> list[StepTable]:
    """``approximate`` for several numbers of intervals, from 1 to 256, which share the dynamic program."""
    if parity not in (None, "even", "none"):
        raise ValueError(f'parity must be "even", "none" or None, got {parity!r}')
    even = parity == "even" or (parity is None and slope.even)
    objective = Objective(slope, domain, weight, even)
    edges = _checked_cells(objective, cells)
    if even:
        slope.require_even(edges)
    _, slopes, weights = objective.nodes(edges)
    mass = weights.sum(dim=1)
    _require_weight(mass)
    means = torch.where(mass > 0, (slopes * weights).sum(dim=1) / mass, slopes.mean(dim=1))
    fits = actcore.fit_steps(means, mass, list(pieces))
    found = []
    for fit in fits:
        boundaries, levels, _ = refine(objective, edges, edges[list(fit.cuts)])
        sided = _sided(slope, boundaries, levels, objective.high - objective.low)
        found.append(StepTable(tuple(sided.tolist()), tuple(levels.tolist()), even))
    return found


def fit_codebooks(
    slope: Slope,
    levels: Sequence[int],
    domain: tuple[float, float] = DOMAIN,
    weight: Weight = "uniform",
    cells: int = CELLS,
) -> list[LevelTable]:
    """``approximate(rounding="stochastic")`` for several numbers of levels, from 2 to 256."""
    objective = Objective(slope, domain, weight)
    edges = _checked_cells(objective, cells)
    _, slopes, weights = objective.nodes(edges)
    values, mass = slopes.flatten(), weights.flatten()
    _require_weight(mass)
    least, most = -_greatest(slope, edges, -1.0), _greatest(slope, edges, 1.0)
    if not least < most:
        return [LevelTable((least, most)) for _ in levels]
    values = values.clamp(least, most)
    # Half of the candidates are evenly spaced; the other half share the weight evenly.
    order = values.argsort()
    shares = mass[order].cumsum(0)
    even = torch.linspace(0.0, 1.0, cells // 2 + 1, dtype=torch.float64, device="cpu")
    common = values[order][torch.searchsorted(shares, even * shares[-1]).clamp(max=len(values) - 1)]
    candidates = torch.cat([least + even * (most - least), common]).clamp(least, most).unique()
    candidates[0], candidates[-1] = least, most
    fits = actcore.fit_levels(values, mass, candidates, list(levels))
    return [LevelTable(fit.levels) for fit in fits]


def estimate_error(
    function: ScalarFunction,
    table: StepTable | LevelTable,
    *,
    domain: tuple[float, float] = DOMAIN,
    weight: Weight = "uniform",
    derivative: Callable[[Tensor], Tensor] | None = None,
    parameters: Sequence[float] = (),
) -> float:
    """The error of a table, in the terms that ``approximate`` minimises.

    Args:
        function: as in ``approximate``; so are ``domain``, ``weight``, ``derivative`` and ``parameters``.
        table: a ``StepTable``, for ``∫ weight(x) (f'(x) - level)² dx``; a ``LevelTable``, for the variance ``∫
            weight(x) (above - f'(x)) (f'(x) - below) dx``, a derivative beyond the levels being at the last of them.

    Raises:
        TypeError: ``function`` is no function, or ``table`` no table.
        ValueError: as in ``approximate``.
    """
    if not isinstance(table, StepTable | LevelTable):
        raise TypeError(f"table must be a StepTable or a LevelTable, got {table!r}")
    objective = Objective(Slope(function, parameters, derivative), domain, weight)
    edges = _checked_cells(objective, CELLS)
    levels = torch.tensor(table.levels, dtype=torch.float64, device="cpu")
    if isinstance(table, LevelTable):
        _, slopes, weights = objective.nodes(edges)
        inside = slopes.clamp(levels[0], levels[-1])
        above = torch.searchsorted(levels, inside, right=True).clamp(1, len(levels) - 1)
        return float((weights * (levels[above] - inside) * (inside - levels[above - 1])).sum())
    boundaries = torch.tensor(table.boundaries, dtype=torch.float64, device="cpu")
    cuts = torch.cat([-boundaries, boundaries]) if table.even else boundaries
    cuts = cuts[(cuts > objective.low) & (cuts < objective.high)]
    x, slopes, weights = objective.nodes(torch.cat([edges, cuts]).unique())
    steps = levels[torch.bucketize(x.abs() if table.even else x, boundaries, right=True)]
    return float((weights * (slopes - steps).square()).sum())


def checked_bits(bits: int) -> int:
    """Bits, if they are 1 to 8."""
    if type(bits) is not int:
        raise TypeError(f"bits must be an int, got {bits!r}")
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be from 1 to 8, got {bits}")
    return bits


def _checked_cells(objective: Objective, cells: int) -> Tensor:
    if type(cells) is not int:
        raise TypeError(f"cells must be an int, got {cells!r}")
    if not 2 <= cells <= 32_000:
        raise ValueError(f"cells must be from 2 to 32000, got {cells}")
    edges = objective.cells(cells)
    objective.slope.require_elementwise(edges)
    return edges


def _sided(slope: Slope, boundaries: Tensor, levels: Tensor, width: float) -> Tensor:
    """Boundaries in float32, so that where the derivative jumps, the place itself belongs to torch's side of it.

    A boundary belongs to the interval above. Zeros are frequent inputs, and selu's derivative jumps there.
    """
    boundaries = torch.where(boundaries.abs() < 1e-9 * width, 0.0, boundaries).float()
    at = slope(boundaries.double())
    below = (at - levels[:-1]).abs() < (at - levels[1:]).abs()
    above = torch.nextafter(boundaries, torch.full_like(boundaries, torch.inf))
    # Some processors flush numbers below the least normal one to zero.
    above = torch.where(boundaries == 0, torch.finfo(torch.float32).tiny, above)
    return torch.where(below, above, boundaries).double()


def _require_weight(weights: Tensor) -> None:
    if not float(weights.sum()) > 0:
        raise ValueError("weight must be above 0 somewhere in the domain, got 0 everywhere")


def _greatest(slope: Slope, edges: Tensor, sign: float) -> float:
    """The greatest value of ``sign * slope``, searched ever closer around the best point so far."""
    for _ in range(4):
        values = sign * slope(edges)
        best = int(values.argmax())
        low, high = edges[max(best - 1, 0)], edges[min(best + 1, len(edges) - 1)]
        edges = low + (high - low) * torch.linspace(0.0, 1.0, 101, dtype=torch.float64, device="cpu")
    return float(values.max())
