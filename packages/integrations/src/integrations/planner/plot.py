"""The chart of a plan's front. It needs matplotlib."""

from __future__ import annotations

from os import PathLike

from integrations._utils.drawing import BLUE, FAINT, INK, VERMILION, new_figure, plain_axes, write_figure
from integrations.planner.solution import Solution


def plot_front(plan: Solution, path: str | PathLike[str]) -> None:
    """Draws activation peak against added time for all choices, the bounds on both, and the plan's own choice.

    Args:
        plan: to draw.
        path: the file to write; its ending names the type.
    """
    unit, name = (1 << 30, "GiB") if plan.plain_peak >= 1 << 30 else (1 << 20, "MiB")
    whole = plan.plain_seconds or 1.0
    figure = new_figure((7.5, 4.5))
    axes = figure.subplots()
    peaks = [choice.peak / unit for choice in plan.front]
    if not plan.exact:
        bounds = [100 * choice.seconds_bound / whole for choice in plan.front]
        axes.plot(peaks, bounds, color=FAINT, linewidth=1, linestyle="--", label="no plan is faster")
        axes.axvline(plan.peak_bound / unit, color=FAINT, linewidth=1, linestyle=":", label="no plan takes less")
    axes.plot(peaks, [100 * choice.seconds / whole for choice in plan.front], ".-", color=BLUE, label="plans")
    axes.plot(plan.peak / unit, 100 * plan.overhead, "o", color=VERMILION, label="this plan")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"activation peak, {name}")
    axes.set_ylabel("added time, % of a plain step, as modelled")
    axes.set_title(f"{plan.model}, inputs {plan.graph.inputs}", loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=9)
    plain_axes(axes)
    write_figure(figure, path)
