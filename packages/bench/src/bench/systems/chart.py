"""The chart: memory against time, a panel for each model, every way on it."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.style import BLUE, GREY, GRID, INK, STYLE, VERMILION, footer, require_drawable, write
from bench.systems.report import front, time_of
from bench.systems.results import SystemResults
from bench.systems.ways import PLAIN, WAYS

_COLUMNS = 4


def save_chart(results: SystemResults, path: Path) -> None:
    """Draws results into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: nothing was timed, the type is unknown, or the file cannot be written.
    """
    require_drawable(path)
    subjects = [subject for subject in results.subjects if front(results, subject)]
    if not subjects:
        raise BenchError("there is nothing to draw: no cell has both a peak and times; the text above says why")
    with mpl.rc_context(STYLE):
        write(_draw(results, subjects), path)


def _draw(results: SystemResults, subjects: list[str]) -> Figure:
    rows = -(-len(subjects) // _COLUMNS)
    across = min(len(subjects), _COLUMNS)
    height = 0.6 + 4 * rows
    figure, grid = plt.subplots(rows, across, figsize=(0.5 + 4.4 * across, height), squeeze=False)
    for axes in grid.flat[len(subjects) :]:
        axes.axis("off")
    for axes, subject in zip(grid.flat, subjects, strict=False):
        _draw_subject(axes, results, subject)
    text = "Activation peak and time of a step, over a plain one's; blue: ours, red: others; line: the front."
    footer(figure, text, results.machine)
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1))
    return figure


def _draw_subject(axes: Axes, results: SystemResults, subject: str) -> None:
    plain = results.cell(subject, PLAIN)
    cells = [cell for cell in results.cells if cell.subject == subject and cell.peak_bytes and cell.ratio]
    if plain is None or not plain.peak_bytes:
        return

    def place(peak: int | None) -> float:
        assert plain is not None
        return 100 * (peak or 0) / (plain.peak_bytes or 1)

    best = sorted(front(results, subject), key=lambda cell: cell.peak_bytes or 0)
    axes.step(
        [place(cell.peak_bytes) for cell in best],
        [time_of(cell) for cell in best],
        where="post",
        color=GREY,
        linewidth=3,
        zorder=1,
    )
    for cell in cells:
        colour = INK if cell.way == PLAIN else BLUE if WAYS[cell.way].ours else VERMILION
        at = place(cell.peak_bytes), time_of(cell)
        axes.plot(*at, "o", color=colour, markeredgecolor="white", zorder=3)
        axes.annotate(cell.way, at, (5, 3), textcoords="offset points", fontsize=6.5, color=colour)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.margins(x=0.25)
    axes.set_xlabel("activation peak, % of plain's")
    axes.set_ylabel("step time over plain's")
    axes.set_title(plain.what, loc="left", fontsize=9, weight="bold")
