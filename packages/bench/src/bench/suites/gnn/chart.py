"""The chart: how much less memory the activations take, and that accuracy does not pay for it."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.models.graph_networks import NAMES
from bench.results.charts import BLUE, FAINT, GREEN, GREY, INK, PURPLE, VERMILION, beside, lined, titled
from bench.results.record import Record
from bench.suites.gnn.results import REFERENCE, Curve
from bench.suites.gnn.summary import MARGINS, Row, rows
from bench.units import MIB

_COLOURS = {"L1.1": BLUE, "L1": GREEN, "L1.2": VERMILION}


def draw(record: Record) -> Figure:
    """Memory, and beside it accuracy where networks were trained.

    Raises:
        BenchError: no level was compared.
    """
    levels = [row for row in rows(record) if row.level != REFERENCE]
    if not levels:
        raise BenchError("a chart compares levels with full precision; run with --level L1")
    compared = [row for row in levels if row.ratio is not None]
    if not compared:
        raise BenchError("there is nothing to draw: memory was measured of no level; add --part memory")
    places = _places(compared)
    height = 1.7 + 0.34 * (max(places) + 1)
    trained = any(row.difference for row in compared)
    panels = (1.15, 1) if trained else (1,)
    figure, grid = plt.subplots(
        1, len(panels), figsize=(11 if trained else 7, height), sharey=True, width_ratios=panels, squeeze=False
    )
    left = grid[0, 0]
    _draw_memory(left, compared, places)
    if trained:
        _draw_accuracy(grid[0, 1], compared, places)
    left.set_yticks(places, [row.level for row in compared])
    left.set_ylim(max(places) + 0.7, -0.9)
    for model in dict.fromkeys(row.model for row in compared):
        own = [place for row, place in zip(compared, places, strict=True) if row.model == model]
        words = {"ha": "right", "va": "center", "weight": "bold", "xycoords": ("axes fraction", "data")}
        beside(left, NAMES.get(model, model), (0, sum(own) / len(own)), (-48, 0), **words)
    for axes in grid.flat:
        axes.tick_params(axis="y", length=0)
        lined(axes, "x")
    seeds = len(record.values(Curve, "seed"))
    epochs = f"{record.settings['recipe']['epochs']} epochs, {seeds} {'seed' if seeds == 1 else 'paired seeds'}"
    trained_for = epochs if trained else "one step"
    figure.text(
        0.01,
        0.02,
        f"{record.settings['dataset']}, {trained_for}. "
        f"{record.machine.processor}, torch {record.machine.versions['torch']}, {record.machine.date}.",
        color=FAINT,
        fontsize=8,
    )
    figure.subplots_adjust(
        left=0.16 if trained else 0.25, right=0.98, top=1 - 0.45 / height, bottom=0.9 / height, wspace=0.06
    )
    return figure


def _places(compared: list[Row]) -> list[float]:
    """Vertical place of each row: a gap between models."""
    places: list[float] = []
    for index, row in enumerate(compared):
        gap = 0.0 if not places else 1.0 if row.model == compared[index - 1].model else 1.6
        places.append(places[-1] + gap if places else 0.0)
    return places


def _draw_memory(axes: Axes, compared: list[Row], places: list[float]) -> None:
    for row, place in zip(compared, places, strict=True):
        memory = row.memory
        assert memory is not None
        before, after = (memory.original_bytes or 0) / MIB, (memory.stored_bytes or 0) / MIB
        axes.barh(place, before, height=0.62, color=GREY)
        axes.barh(place, after, height=0.62, color=_COLOURS.get(row.level, PURPLE))
        beside(axes, f"{before / after:.1f}×" if after else "", (before, place), (5, 0), va="center", weight="bold")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel("MiB kept for backward")
    titled(axes, "Saved activations, before (grey) and after")


def _draw_accuracy(axes: Axes, compared: list[Row], places: list[float]) -> None:
    reach = 1.5
    for row, place in zip(compared, places, strict=True):
        margin, difference = MARGINS.get(row.level), row.difference
        if difference is None:
            continue
        if margin is not None:
            axes.barh(place, 2 * margin, left=-margin, height=0.82, color="#EEF1F4")
        low = difference.mean if difference.low is None else difference.low
        high = difference.mean if difference.high is None else difference.high
        colour = _COLOURS.get(row.level, PURPLE)
        axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
        axes.plot(difference.mean, place, "o", color=colour, markersize=7, markeredgecolor="white")
        reach = max(reach, margin or 0, abs(low), abs(high))
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_xlim(-1.1 * reach, 1.1 * reach)
    axes.set_xlabel("points of test accuracy; line: 95 % interval, band: target")
    titled(axes, "Accuracy against full precision, paired seeds")
