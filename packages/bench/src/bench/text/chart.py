"""The chart: the held-out loss's difference from plain against stored bytes, a panel for each network and task."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.style import BLUE, GRID, INK, STYLE, VERMILION, footer, require_drawable, write
from bench.systems.ways import PLAIN
from bench.text.report import trained
from bench.text.results import TextResults
from bench.text.ways import CONTROL


def save_chart(results: TextResults, path: Path) -> None:
    """Draws results into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: no way was trained beside plain, the type is unknown, or the file cannot be written.
    """
    require_drawable(path)
    panels = [panel for panel in trained(results) if _ways(results, *panel)]
    if not panels:
        raise BenchError(
            "there is nothing to draw: no way that stores less was trained beside plain; see the text above"
        )
    with mpl.rc_context(STYLE):
        write(_draw(results, panels), path)


def _draw(results: TextResults, panels: list[tuple[str, str]]) -> Figure:
    figure, row = plt.subplots(1, len(panels), figsize=(0.8 + 5.6 * len(panels), 4.8), squeeze=False)
    for axes, (model, task) in zip(row[0], panels, strict=True):
        _draw_panel(axes, results, model, task)
    footer(figure, "Held-out loss less plain's of the same seed, 95 % interval; dashed: no gradient.", results.machine)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure


def _draw_panel(axes: Axes, results: TextResults, model: str, task: str) -> None:
    for way, part in _ways(results, model, task).items():
        found = results.difference(model, task, way, lambda run: run.held_out)
        assert found is not None
        if found.low is not None and found.high is not None:
            axes.plot([part, part], [found.low, found.high], color=BLUE, linewidth=1.5)
        axes.plot(part, found.mean, "o", color=BLUE, markeredgecolor="white", zorder=3)
        axes.annotate(way, (part, found.mean), (5, 3), textcoords="offset points", fontsize=6.5)
    axes.axhline(0, color=INK, linewidth=1)
    control = results.difference(model, task, CONTROL, lambda run: run.held_out)
    if control is not None:
        axes.axhline(control.mean, color=VERMILION, linewidth=1, linestyle="--")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(0, 1.15 * max(100.0, *_ways(results, model, task).values()))
    axes.margins(y=0.15)
    axes.set_xlabel("stored activations, % of plain's")
    axes.set_title(f"{task}, {model}", loc="left", fontsize=11, weight="bold")


def _ways(results: TextResults, model: str, task: str) -> dict[str, float]:
    """What each way stores, in percent of plain."""
    found = {}
    for way in dict.fromkeys(run.way for run in results.runs if (run.model, run.task) == (model, task)):
        smaller = results.smaller(model, task, way)
        if way != PLAIN and smaller and results.difference(model, task, way, lambda run: run.held_out):
            found[way] = 100 / smaller
    return found
