"""Charts of step tables: the derivative, its steps, and the error between them. They need matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from integrations._utils.drawing import BLUE, INK, VERMILION, new_figure, plain_axes, write_figure
from integrations.policies.codebooks.slopes import ScalarFunction, Slope
from integrations.policies.codebooks.steps import StepTable

_POINTS = 4001


def plot_table(
    function: ScalarFunction,
    table: StepTable,
    path: str | PathLike[str],
    *,
    domain: tuple[float, float] = (-10.0, 10.0),
    error: float | None = None,
    parameters: Sequence[float] = (),
    derivative: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Draws a derivative and its steps above, and the error between them below.

    Args:
        function: as in ``approximate``; so are ``domain``, ``parameters`` and ``derivative``.
        table: the steps.
        path: the file to write; its ending names the type: ``.png``, ``.svg``, ``.pdf``.
        error: a number for the title, the integral of the squared error.

    Raises:
        ImportError: matplotlib is not there.
        ValueError: the ending is of no type that matplotlib writes.
        OSError: the file cannot be written.
    """
    figure = new_figure((8.0, 5.0))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    slope = Slope(function, parameters, derivative)
    x, exact, steps = _curves(slope, table, domain)
    _draw(upper, x, exact, steps)
    upper.legend(["derivative", f"{len(table.levels)} levels" + " of |x|" * table.even], frameon=False, fontsize=9)
    told = "" if error is None else f": squared error {error:.3g}"
    upper.set_title(f"{slope.name}' in {table.bits} bits{told}", loc="left", fontsize=10, color=INK)
    lower.fill_between(x, [a - b for a, b in zip(steps, exact, strict=True)], color=VERMILION, linewidth=0, alpha=0.7)
    lower.set_ylabel("error")
    lower.set_xlabel("x")
    plain_axes(lower)
    write_figure(figure, path)


def plot_functions(tables: Mapping[str, StepTable], path: str | PathLike[str]) -> None:
    """Draws several functions' derivatives and steps into one figure, each over the part where it bends.

    Args:
        tables: name in ``FUNCTIONS`` -> its steps.
        path: as in ``plot_table``.

    Raises:
        ImportError, ValueError, OSError: as ``plot_table``.
    """
    columns = 4
    rows = -(-len(tables) // columns)
    figure = new_figure((11.0, 2.1 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes, (name, table) in zip(panels, tables.items(), strict=False):
        reach = min(10.0, 1.5 * max(map(abs, table.boundaries)))
        _draw(axes, *_curves(Slope(name), table, (-reach, reach)))
        axes.set_title(name + "  (steps of |x|)" * table.even, loc="left", fontsize=9, color=INK)
        axes.tick_params(labelsize=7)
    for axes in panels[len(tables) :]:
        axes.remove()
    write_figure(figure, path)


def _curves(
    slope: Slope, table: StepTable, domain: tuple[float, float]
) -> tuple[list[float], list[float], list[float]]:
    x = torch.linspace(*domain, _POINTS, dtype=torch.float64, device="cpu")
    levels = torch.tensor(table.levels, dtype=torch.float64, device="cpu")
    boundaries = torch.tensor(table.boundaries, dtype=torch.float64, device="cpu")
    steps = levels[torch.bucketize(x.abs() if table.even else x, boundaries, right=True)]
    return x.tolist(), slope(x).tolist(), steps.tolist()


def _draw(axes: Any, x: list[float], exact: list[float], steps: list[float]) -> None:
    axes.plot(x, exact, color=BLUE, linewidth=1.6)
    axes.plot(x, steps, color=VERMILION, linewidth=1.0)
    plain_axes(axes)
