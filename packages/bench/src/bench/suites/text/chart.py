"""The chart: the held-out loss's difference from plain against stored bytes, a panel for each network and task."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.results.charts import BLUE, INK, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.suites.text.results import Run, difference, smaller, trained
from bench.ways.general import PLAIN
from bench.ways.text import CONTROL


def draw(record: Record) -> Figure:
    """A panel for each network and task.

    Raises:
        BenchError: no way was trained beside plain.
    """
    panels = [panel for panel in trained(record) if _ways(record, *panel)]
    if not panels:
        raise BenchError(
            "there is nothing to draw: no way that stores less was trained beside plain; see the text above"
        )
    figure, row = plt.subplots(1, len(panels), figsize=(0.8 + 5.6 * len(panels), 4.8), squeeze=False)
    for axes, (model, task) in zip(row[0], panels, strict=True):
        _draw_panel(axes, record, model, task)
    footer(figure, "Held-out loss less plain's of the same seed, 95 % interval; dashed: no gradient.", record.machine)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure


def _draw_panel(axes: Axes, record: Record, model: str, task: str) -> None:
    for way, part in _ways(record, model, task).items():
        found = difference(record, model, task, way, lambda run: run.held_out)
        assert found is not None
        if found.low is not None and found.high is not None:
            axes.plot([part, part], [found.low, found.high], color=BLUE, linewidth=1.5)
        axes.plot(part, found.mean, "o", color=BLUE, markeredgecolor="white", zorder=3)
        beside(axes, way, (part, found.mean), (5, 3), fontsize=6.5)
    axes.axhline(0, color=INK, linewidth=1)
    control = difference(record, model, task, CONTROL, lambda run: run.held_out)
    if control is not None:
        axes.axhline(control.mean, color=VERMILION, linewidth=1, linestyle="--")
    lined(axes)
    axes.set_xlim(0, 1.15 * max(100.0, *_ways(record, model, task).values()))
    axes.margins(y=0.15)
    axes.set_xlabel("stored activations, % of plain's")
    titled(axes, f"{task}, {model}")


def _ways(record: Record, model: str, task: str) -> dict[str, float]:
    """What each way stores, in percent of plain."""
    found = {}
    for way in record.values(Run, "way", model=model, task=task):
        times = smaller(record, model, task, way)
        if way != PLAIN and times and difference(record, model, task, way, lambda run: run.held_out):
            found[way] = 100 / times
    return found
