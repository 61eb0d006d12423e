"""The chart: how many bytes models save for backward, how far gradients are off, and how long a step takes."""

from __future__ import annotations

from pathlib import Path
from statistics import median, quantiles

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.activations.notes import ERRORS, TIMES
from bench.activations.results import ActivationResults, LevelResult, ModelResult
from bench.errors import BenchError
from bench.style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    VERMILION,
    footer,
    require_drawable,
    write,
)

_COLOURS = {"L1": GREEN, "L1.1": BLUE, "L2": VERMILION, "L2.2": ORANGE}
_NAMES = {"resnet18": "ResNet-18", "vit_tiny": "ViT-tiny", "bert": "BERT", "gcn": "GCN"}
_BAND = "#E6F1F8"

Row = tuple[float, ModelResult, LevelResult]  # with its place on the vertical axis


def save_chart(results: ActivationResults, path: Path) -> None:
    """Draws the part ``models`` into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: that part was not run, the type is unknown, or the file cannot be written.
    """
    require_drawable(path)
    if not results.models:
        raise BenchError("a chart shows the part models; run it with --part models")
    with mpl.rc_context(STYLE):
        write(_draw(results), path)


def _draw(results: ActivationResults) -> Figure:
    rows = _rows(results)
    height = 1.9 + 0.3 * (rows[-1][0] + 1)
    figure, (size, error, time) = plt.subplots(
        1, 3, figsize=(11, height), sharey=True, width_ratios=(1.35, 1, 1), squeeze=True
    )
    _draw_bytes(size, rows)
    _draw_errors(error, rows)
    _draw_times(time, rows)
    size.set_yticks([place for place, _, _ in rows], [level.level for _, _, level in rows])
    size.set_ylim(rows[-1][0] + 0.7, -0.9)
    for model in results.models:
        own = [place for place, other, _ in rows if other is model]
        size.annotate(
            _NAMES.get(model.model, model.model),
            (0, sum(own) / len(own)),
            xytext=(-44, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
            weight="bold",
        )
    for axes in (size, error, time):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
    level = rows[0][2]
    footer(figure, f"{len(level.errors)} steps, {len(level.seconds)} rounds in turn, medians.", results.machine)
    figure.subplots_adjust(left=0.14, right=0.985, top=1 - 0.45 / height, bottom=1.05 / height, wspace=0.1)
    return figure


def _rows(results: ActivationResults) -> list[Row]:
    """Every level of every model, a gap between models."""
    rows: list[Row] = []
    place = 0.0
    for model in results.models:
        for level in model.levels:
            rows.append((place, model, level))
            place += 1.0
        place += 0.6
    return rows


def _colour(level: LevelResult) -> str:
    return _COLOURS.get(level.level, PURPLE)


def _draw_bytes(axes: Axes, rows: list[Row]) -> None:
    """A part of what autograd keeps, since models differ a hundredfold."""
    for place, _, level in rows:
        axes.barh(place, 1, height=0.66, color=GREY)
        axes.barh(place, 1 / level.ratio, height=0.66, color=_colour(level))
        axes.annotate(
            f"{level.ratio:.1f}×",
            (1 / level.ratio, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
        )
        before, after = level.original_bytes / 2**20, level.stored_bytes / 2**20
        axes.text(0.98, place, f"{before:.1f} → {after:.1f} MiB", ha="right", va="center", fontsize=8.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("of what autograd keeps for backward", fontsize=9)
    axes.set_title("Saved activations, stored", loc="left", fontsize=11, weight="bold")


def _draw_errors(axes: Axes, rows: list[Row]) -> None:
    low = min(level.error for _, _, level in rows if level.error)
    for place, _, level in rows:
        if (most := ERRORS.get(level.level)) is not None:
            axes.barh(place, most - low / 4, left=low / 4, height=0.84, color=_BAND, zorder=0)
        axes.plot(level.error, place, "o", color=_colour(level), markersize=7, markeredgecolor="white")
    axes.set_xscale("log")
    axes.set_xlim(low / 2, 1)
    axes.xaxis.set_major_locator(FixedLocator([0.003, 0.01, 0.03, 0.1, 0.3]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("relative, whole gradient; band: target", fontsize=9)
    axes.set_title("Gradient's error", loc="left", fontsize=11, weight="bold")


def _draw_times(axes: Axes, rows: list[Row]) -> None:
    for place, model, level in rows:
        if (most := TIMES.get((model.model, level.level))) is not None:
            axes.barh(place, most, height=0.84, color=_BAND, zorder=0)
        ratios = [a / b for a, b in zip(level.seconds, model.plain_seconds, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        axes.plot([low, high], [place, place], color=GREY, linewidth=2.2, solid_capstyle="round")
        axes.plot(median(ratios), place, "o", color=_colour(level), markersize=7, markeredgecolor="white")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xlim(left=0.9)
    axes.set_xlabel("over plain; line: middle half; band: target", fontsize=9)
    axes.set_title("Time of a step", loc="left", fontsize=11, weight="bold")
