"""The chart: how many bytes models save for backward, how far gradients are off, and how long a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median, quantiles

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.errors import BenchError
from bench.results.charts import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.suites.memory.activations.results import ERRORS, TIMES, LevelResult

_COLOURS = {"L1": GREEN, "L1.1": BLUE, "L2": VERMILION, "L2.2": ORANGE}
_NAMES = {"resnet18": "ResNet-18", "vit_tiny": "ViT-tiny", "bert": "BERT", "gcn": "GCN"}
_BAND = "#E6F1F8"

Row = tuple[float, LevelResult]  # with its place on the vertical axis


def draw(record: Record) -> Figure:
    """Three panels of the part ``models``.

    Raises:
        BenchError: that part was not run.
    """
    rows = _rows(record.measured(LevelResult))
    if not rows:
        raise BenchError("a chart shows the part models; run it with --part models")
    height = 1.9 + 0.3 * (rows[-1][0] + 1)
    figure, panels = plt.subplots(1, 3, figsize=(11, height), sharey=True, width_ratios=(1.35, 1, 1), squeeze=True)
    for axes, drawn in zip(panels, (_draw_bytes, _draw_errors, _draw_times), strict=True):
        drawn(axes, rows)
    size = panels[0]
    size.set_yticks([place for place, _ in rows], [entry.level for _, entry in rows])
    size.set_ylim(rows[-1][0] + 0.7, -0.9)
    for model in dict.fromkeys(entry.model for _, entry in rows):
        own = [place for place, entry in rows if entry.model == model]
        at = 0, sum(own) / len(own)
        words = {"ha": "right", "va": "center", "weight": "bold", "xycoords": ("axes fraction", "data")}
        beside(size, _NAMES.get(model, model), at, (-44, 0), **words)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
        lined(axes, "x")
    _, first = rows[0]
    footer(figure, f"{len(first.errors)} steps, {len(first.seconds)} rounds in turn, medians.", record.machine)
    figure.subplots_adjust(left=0.14, right=0.985, top=1 - 0.45 / height, bottom=1.05 / height, wspace=0.1)
    return figure


def _rows(levels: Sequence[LevelResult]) -> list[Row]:
    """Every level of every model, a gap between models."""
    rows: list[Row] = []
    place = 0.0
    for _, found in groupby(levels, lambda entry: entry.model):
        for entry in found:
            rows.append((place, entry))
            place += 1.0
        place += 0.6
    return rows


def _colour(level: LevelResult) -> str:
    return _COLOURS.get(level.level, PURPLE)


def _draw_bytes(axes: Axes, rows: list[Row]) -> None:
    """A part of what autograd keeps, since models differ a hundredfold."""
    for place, level in rows:
        axes.barh(place, 1, height=0.66, color=GREY)
        axes.barh(place, 1 / level.smaller, height=0.66, color=_colour(level))
        beside(axes, f"{level.smaller:.1f}×", (1 / level.smaller, place), (5, 0), va="center", weight="bold")
        before, after = level.original_bytes / 2**20, level.stored_bytes / 2**20
        axes.text(0.98, place, f"{before:.1f} → {after:.1f} MiB", ha="right", va="center", fontsize=8.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("of what autograd keeps for backward", fontsize=9)
    titled(axes, "Saved activations, stored")


def _draw_errors(axes: Axes, rows: list[Row]) -> None:
    low = min(level.error for _, level in rows if level.error)
    for place, level in rows:
        if (most := ERRORS.get(level.level)) is not None:
            axes.barh(place, most - low / 4, left=low / 4, height=0.84, color=_BAND, zorder=0)
        axes.plot(level.error, place, "o", color=_colour(level), markersize=7, markeredgecolor="white")
    axes.set_xscale("log")
    axes.set_xlim(low / 2, 1)
    axes.xaxis.set_major_locator(FixedLocator([0.003, 0.01, 0.03, 0.1, 0.3]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("relative, whole gradient; band: target", fontsize=9)
    titled(axes, "Gradient's error")


def _draw_times(axes: Axes, rows: list[Row]) -> None:
    for place, level in rows:
        if (most := TIMES.get((level.model, level.level))) is not None:
            axes.barh(place, most, height=0.84, color=_BAND, zorder=0)
        ratios = [a / b for a, b in zip(level.seconds, level.plain_seconds, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        axes.plot([low, high], [place, place], color=GREY, linewidth=2.2, solid_capstyle="round")
        axes.plot(median(ratios), place, "o", color=_colour(level), markersize=7, markeredgecolor="white")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xlim(left=0.9)
    axes.set_xlabel("over plain; line: middle half; band: target", fontsize=9)
    titled(axes, "Time of a step")
