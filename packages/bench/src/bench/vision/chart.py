"""The chart: the variance of each layer's gradient, predicted and measured, and what each step of the ablation does."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.style import BLUE, GREY, GRID, INK, STYLE, VERMILION, footer, require_drawable, write
from bench.vision.notes import FACTOR
from bench.vision.results import Variance, VisionResults

_BAND = "#D6E8F4"


def save_chart(results: VisionResults, path: Path) -> None:
    """Draws the part ``variance`` into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: that part was not run, the type is unknown, or the file cannot be written.
    """
    require_drawable(path)
    if not results.variances:
        raise BenchError("a chart shows the part variance; run it with --part variance")
    with mpl.rc_context(STYLE):
        write(_draw(results), path)


def _draw(results: VisionResults) -> Figure:
    count = len(results.variances)
    figure, rows = plt.subplots(
        2, count, figsize=(11, 6.4), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1)
    )
    for place, variance in enumerate(results.variances):
        _draw_variance(rows[0, place], variance)
        _draw_bits(rows[1, place], variance)
    rows[0, 0].set_ylabel("variance / squared gradient")
    rows[1, 0].set_ylabel("bits")
    rows[0, 0].legend(frameon=False, loc="upper right", fontsize=9)
    first = results.variances[0].found
    text = (
        f"ResNet-20 on the {results.data.partition(' (')[0]} after {results.recipe['steps before variances']:g} steps, "
        f"batch {results.recipe['batch of variances']:g}, {first.repeats} repeats; bars: a factor of {FACTOR:g} around "
        "what was measured."
    )
    footer(figure, text, results.machine)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.93, bottom=0.24, wspace=0.06, hspace=0.08)
    return figure


def _draw_variance(axes: Axes, variance: Variance) -> None:
    layers = [layer for layer in variance.found.layers if layer.gradient and layer.measured]
    places = list(range(len(layers)))
    measured = [layer.measured / layer.gradient for layer in layers]
    axes.vlines(places, [one / FACTOR for one in measured], [one * FACTOR for one in measured], _BAND, linewidth=7)
    predicted = [layer.predicted / layer.gradient for layer in layers]
    axes.plot(places, measured, "x", color=VERMILION, markersize=5, label="measured")
    axes.plot(places, predicted, "o", color=BLUE, markersize=4.5, markeredgecolor="white", label="predicted")
    axes.set_yscale("log")
    axes.set_title(
        f"{variance.name}: {variance.share:.3g} of the whole gradient's square", loc="left", fontsize=11, weight="bold"
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.tick_params(axis="x", length=0)
    axes.set_axisbelow(True)


def _draw_bits(axes: Axes, variance: Variance) -> None:
    layers = [layer for layer in variance.found.layers if layer.gradient and layer.measured]
    axes.bar(range(len(layers)), [layer.bits for layer in layers], color=GREY, width=0.7)
    axes.set_xticks(range(len(layers)), [layer.name for layer in layers], rotation=90, fontsize=6.5, color=INK)
    axes.set_xlim(-1, len(layers))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
