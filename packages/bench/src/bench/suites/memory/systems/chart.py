"""The chart: memory against time, a panel for each model, every way on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

from bench.errors import BenchError
from bench.results.charts import BLUE, GREY, INK, ORANGE, VERMILION, footer, lined, titled
from bench.results.record import Record
from bench.suites.memory.systems.fronts import NOISE, front, relative_time, trains
from bench.suites.memory.systems.results import Cell, as_fresh
from bench.ways.general import BOUNDS, PLAIN, WAYS

_COLUMNS = 2
_NUMBERS = {way: number for number, way in enumerate(WAYS)}
"""Of the ways, by which points are told apart: names would lie on one another."""


def draw(record: Record) -> Figure:
    """A panel for each model and state of its gradients.

    Raises:
        BenchError: nothing was timed.
    """
    fresh = as_fresh(record)
    states = {"": record} if not fresh.entries else {", gradients are there": record, ", fresh": fresh}
    panels = [
        (state, subject, words)
        for subject in record.values(Cell, "subject")
        for words, state in states.items()
        if front(state, subject)
    ]
    if not panels:
        raise BenchError("there is nothing to draw: no cell has both a peak and times; the text above says why")
    return _draw(record, panels)


def _draw(record: Record, panels: Sequence[tuple[Record, str, str]]) -> Figure:
    """A panel for each model of record with one state of the gradients, which words name."""
    rows = -(-len(panels) // _COLUMNS)
    height = 1.25 + 3.9 * rows
    figure, grid = plt.subplots(rows, _COLUMNS, figsize=(11, height), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (state, subject, words) in zip(grid.flat, panels, strict=False):
        _draw_subject(axes, state, subject, words)
    named = [way for way in _NUMBERS if any(cell.way == way and cell.ratio for cell in record.of(Cell))]
    named = [way for way in named if WAYS[way].budget is None]
    half = -(-len(named) // 2)
    legend = "\n".join(
        "   ".join(f"{_NUMBERS[way]} {way}" for way in some) for some in (named[:half], named[half:]) if some
    )
    text = (
        "Activation peak and time of a step, over a plain one's; blue: ours, red: others, hollow: the gradient's error "
        f"is above {NOISE:g}, or not known.\nLines: grey the front of all, red of others, blue plans by their budgets, "
        "orange those that may round."
    )
    figure.text(0.01, 0.8 / height, legend, color=INK, fontsize=8.5, va="bottom")
    footer(figure, text, record.machine)
    figure.tight_layout(rect=(0, 1.1 / height, 1, 1))
    return figure


def _draw_subject(axes: Axes, record: Record, subject: str, words: str) -> None:
    plain = record.find(Cell, subject=subject, way=PLAIN)
    cells = [cell for cell in record.of(Cell) if cell.subject == subject and cell.peak_bytes and cell.ratio]
    if plain is None or not plain.peak_bytes:
        return

    def place(peak: int | None) -> float:
        assert plain is not None
        return 100 * (peak or 0) / (plain.peak_bytes or 1)

    best = sorted(front(record, subject), key=lambda cell: cell.peak_bytes or 0)
    theirs = replace(record, entries=[cell for cell in cells if not WAYS[cell.way].ours])
    fronts = ((best, GREY, 3), (sorted(front(theirs, subject), key=lambda cell: cell.peak_bytes or 0), VERMILION, 1))
    for found, colour, width in fronts:
        ends = [place(cell.peak_bytes) for cell in found], [relative_time(cell) for cell in found]
        axes.step(*ends, where="post", color=colour, linewidth=width, zorder=1)
    for bound, colour in zip(BOUNDS, (BLUE, ORANGE), strict=False):
        plans = [cell for cell in cells if WAYS[cell.way].budget is not None and WAYS[cell.way].bound == bound]
        plans.sort(key=lambda cell: cell.peak_bytes or 0)
        ends = [place(cell.peak_bytes) for cell in plans], [relative_time(cell) for cell in plans]
        axes.plot(*ends, "-s", color=colour, markersize=6, markeredgecolor="white", zorder=5)
    for cell in cells:
        if WAYS[cell.way].budget is not None:
            continue
        colour = INK if cell.way == PLAIN else BLUE if WAYS[cell.way].ours else VERMILION
        filled = trains(cell)
        at = place(cell.peak_bytes), relative_time(cell)
        inside = colour if filled else "white"
        above = 4 if cell in best else 3
        edge = "white" if filled else colour
        axes.plot(*at, "o", markersize=11, color=inside, markeredgecolor=edge, alpha=0.85, zorder=above)
        number = str(_NUMBERS[cell.way])
        colour = "white" if filled else colour
        axes.annotate(number, at, fontsize=6.5, color=colour, ha="center", va="center", zorder=above)
    lined(axes)
    axes.set_xlim(0, 1.08 * max(place(cell.peak_bytes) for cell in cells))
    axes.set_yscale("log")
    axes.margins(y=0.1)
    low, high = axes.get_ylim()
    ticks = (0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5) if high < 1.6 * low else (1, 1.25, 1.5, 2, 3, 5, 10, 15)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("activation peak, % of plain's")
    axes.set_ylabel("step time over plain's")
    titled(axes, plain.what + words, 9)
