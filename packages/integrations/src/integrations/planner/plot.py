"""The chart of a plan's front. It needs matplotlib."""

from __future__ import annotations

from os import PathLike
from typing import Any

from integrations._utils.drawing import BLUE, FAINT, INK, VERMILION, literal, new_figure, plain_axes, write_figure
from integrations.planner.solution import Solution
from integrations.report.words import choose_unit


def plot_front(plan: Solution, path: str | PathLike[str]) -> None:
    """See ``Plan.plot``."""
    figure = draw_front(plan)
    title = literal(f"{plan.model}, inputs {plan.graph.inputs}")
    figure.axes[0].set_title(title, loc="left", fontsize=10, color=INK)
    write_figure(figure, path)


def draw_front(plan: Solution) -> Any:
    """Draw activation peak against added time for all choices, the bounds on both, and the plan's own choice, without a
    title: a figure of matplotlib.

    Raises:
        ImportError: matplotlib is not there.
    """
    size, unit = choose_unit(plan.plain_peak)
    whole = plan.plain_seconds or 1.0
    figure = new_figure((7.5, 4.5))
    axes = figure.subplots()
    peaks = [choice.peak / size for choice in plan.front]
    if not plan.exact:
        bounds = [100 * choice.seconds_bound / whole for choice in plan.front]
        axes.plot(peaks, bounds, color=FAINT, linewidth=1, linestyle="--", label="no plan is faster")
        axes.axvline(plan.peak_bound / size, color=FAINT, linewidth=1, linestyle=":", label="no plan takes less")
    axes.plot(peaks, [100 * choice.seconds / whole for choice in plan.front], ".-", color=BLUE, label="plans")
    axes.plot(plan.peak / size, 100 * plan.overhead, "o", color=VERMILION, label="this plan")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"activation peak, {unit}")
    axes.set_ylabel("added time, % of a plain step, as modelled")
    axes.legend(frameon=False, fontsize=9)
    plain_axes(axes)
    return figure
