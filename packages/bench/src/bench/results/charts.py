"""Charts of recorded results: panels of horizontal bars, or of points and lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bench.errors import BenchError
from bench.results.machine import Machine
from integrations._utils.whole_files import written_whole

# Okabe and Ito's colors, which keep apart for every kind of color vision (https://jfly.uni-koeln.de/color/).
BLUE, GREEN, VERMILION, PURPLE, ORANGE = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00"
GREY, INK, FAINT, GRID = "#C9CCD1", "#22262B", "#7A828C", "#E8EAED"

STYLE: dict[Any, Any] = {  # matplotlib types the keys one by one
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Bar:
    """A row of a panel of bars.

    Attributes:
        label: its name.
        value: where it ends.
        color: its color.
        whole: where a grey bar behind it ends, such as the value without compression.
        interval: ends of a line on it.
        mark: place of a red line, such as a published value or a target.
        words: text behind it.
    """

    label: str
    value: float
    color: str = BLUE
    whole: float | None = None
    interval: tuple[float, float] | None = None
    mark: float | None = None
    words: str = ""


@dataclass(frozen=True)
class Series:
    """Points of a panel, or a line through them.

    Attributes:
        x, y: coordinates.
        label: its name in the legend; empty: not there.
        color: its color.
        style: marker and line as matplotlib writes them, such as ``"o"``, ``"o-"`` or ``"--"``.
        names: text beside each point.
        intervals: ends of a vertical line through each point.
        hollow: whether markers are white inside.
    """

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    color: str = BLUE
    style: str = "o"
    names: Sequence[str] = ()
    intervals: Sequence[tuple[float, float]] = ()
    hollow: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: above it.
        xlabel, ylabel: of the axes.
        bars: from top to bottom.
        series: points and lines.
        rows: names of ``y`` 0, 1, ... from top to bottom, where points stand in rows.
        log: axes that are logarithmic.
        line: place of a line across the values: vertical for bars and rows, horizontal for other points.
    """

    title: str
    xlabel: str
    ylabel: str = ""
    bars: Sequence[Bar] = ()
    series: Sequence[Series] = ()
    rows: Sequence[str] = ()
    log: Literal["", "x", "y", "xy"] = ""
    line: float | None = None

    @property
    def names(self) -> Sequence[str]:
        """Names of the rows; none where the vertical axis has numbers."""
        return [bar.label for bar in self.bars] or self.rows


def require_drawable(path: Path) -> None:
    """Raises ``BenchError`` if the file's name asks for a type that cannot be drawn."""
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise BenchError(f"a chart's name must end in .png, .svg or .pdf, got {path}")


def save_panels(panels: Sequence[Panel], caption: str, machine: Machine, path: Path) -> None:
    """Draw panels, three beside each other, and write the figure.

    Raises:
        BenchError: the file cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure = _draw(panels, f"{caption}\n{_where(machine)}.")
        try:
            with written_whole(path) as part:
                figure.savefig(part, dpi=200, facecolor="white")
        except OSError as error:
            raise BenchError(f"the chart cannot be written to {path} ({error.strerror}); name another file") from error
        finally:
            plt.close(figure)


def _draw(panels: Sequence[Panel], footer: str) -> Figure:
    across = 2 if len(panels) in (2, 4) else min(3, len(panels))
    down = -(-len(panels) // across)
    tallest = max(4.0, 1.3 + 0.24 * max(len(panel.names) for panel in panels))
    bottom = 0.35 + 0.16 * footer.count("\n")
    height = down * tallest + bottom
    figure, grid = plt.subplots(down, across, figsize=(5.4 * across, height), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel)
    figure.text(0.01, 0.08 / height, footer, color=FAINT, fontsize=8)
    figure.tight_layout(rect=(0, bottom / height, 1, 1))
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for place, bar in enumerate(panel.bars):
        _draw_bar(axes, bar, place)
    for series in panel.series:
        _draw_series(axes, series)
    if panel.line is not None:
        (axes.axvline if panel.names else axes.axhline)(panel.line, color=INK, linewidth=1)
    if panel.names:
        axes.set_yticks(range(len(panel.names)), panel.names, fontsize=8)
        axes.set_ylim(len(panel.names) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    if panel.bars:
        axes.margins(x=0.18)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in panel.log:
            axes.set(**{f"{name}scale": "log"})
            axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)
    axes.set_title(textwrap.fill(panel.title, 52), loc="left", fontsize=9, weight="bold")
    if any(series.label for series in panel.series):
        axes.legend()


def _draw_bar(axes: Axes, bar: Bar, place: int) -> None:
    if bar.whole is not None:
        axes.barh(place, bar.whole, color=GREY, height=0.62)
    axes.barh(place, bar.value, color=bar.color, height=0.62)
    if bar.interval is not None:
        axes.plot(bar.interval, (place, place), color=INK, linewidth=1.5)
    if bar.mark is not None:
        axes.plot((bar.mark, bar.mark), (place - 0.42, place + 0.42), color=VERMILION, linewidth=2)
    if bar.words:
        end = max(bar.value, bar.whole or 0.0, *(bar.interval or ()))
        axes.annotate(bar.words, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)


def _draw_series(axes: Axes, series: Series) -> None:
    inside = "white" if series.hollow else series.color
    edge = series.color if series.hollow or series.style == "x" else "white"
    axes.plot(
        series.x,
        series.y,
        series.style,
        color=series.color,
        markerfacecolor=inside,
        markeredgecolor=edge,
        label=series.label or None,
    )
    for x, ends in zip(series.x, series.intervals, strict=False):
        axes.plot((x, x), ends, color=series.color, linewidth=1.2)
    for x, y, name in zip(series.x, series.y, series.names, strict=False):
        axes.annotate(name, (x, y), (4, 3), textcoords="offset points", fontsize=6.5, color=series.color)


def _where(machine: Machine) -> str:
    """Return the machine, the threads, torch's version, the date and the commit, in one line."""
    commit = f"commit {machine.commit[:10] or 'unknown'}{' with changes' if machine.dirty else ''}"
    versions = f"torch {machine.versions['torch']}" if "torch" in machine.versions else ""
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    return ", ".join(filter(None, (machine.processor, threads, versions, machine.date, commit)))
