"""The chart: the variance of each layer's gradient, predicted and measured, and what each step of the ablation does."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.results.charts import BLUE, GREY, INK, VERMILION, footer, lined, titled
from bench.results.record import Record
from bench.suites.vision.results import FACTOR, Variance

_BAND = "#D6E8F4"


def draw(record: Record) -> Figure:
    """A column for each level of the part ``variance``.

    Raises:
        BenchError: that part was not run.
    """
    variances = record.measured(Variance)
    if not variances:
        raise BenchError("a chart shows the part variance; run it with --part variance")
    figure, rows = plt.subplots(
        2, len(variances), figsize=(11, 6.4), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1)
    )
    for place, variance in enumerate(variances):
        _draw_variance(rows[0, place], variance)
        _draw_bits(rows[1, place], variance)
    rows[0, 0].set_ylabel("variance / squared gradient")
    rows[1, 0].set_ylabel("bits")
    rows[0, 0].legend(frameon=False, loc="upper right", fontsize=9)
    first, data, recipe = variances[0], record.settings["data"], record.settings["recipe"]
    text = (
        f"ResNet-20 on the {data.partition(' (')[0]} after {recipe['steps before variances']:g} steps, "
        f"batch {recipe['batch of variances']:g}, {first.repeats} repeats; bars: a factor of {FACTOR:g} around "
        "what was measured."
    )
    footer(figure, text, record.machine)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.93, bottom=0.24, wspace=0.06, hspace=0.08)
    return figure


def _draw_variance(axes: Axes, variance: Variance) -> None:
    layers = [layer for layer in variance.layers if layer.gradient and layer.measured]
    places = list(range(len(layers)))
    measured = [layer.measured / layer.gradient for layer in layers]
    axes.vlines(places, [one / FACTOR for one in measured], [one * FACTOR for one in measured], _BAND, linewidth=7)
    predicted = [layer.predicted / layer.gradient for layer in layers]
    axes.plot(places, measured, "x", color=VERMILION, markersize=5, label="measured")
    axes.plot(places, predicted, "o", color=BLUE, markersize=4.5, markeredgecolor="white", label="predicted")
    axes.set_yscale("log")
    titled(axes, f"{variance.name}: {variance.share:.3g} of the whole gradient's square")
    lined(axes, "y")
    axes.tick_params(axis="x", length=0)


def _draw_bits(axes: Axes, variance: Variance) -> None:
    layers = [layer for layer in variance.layers if layer.gradient and layer.measured]
    axes.bar(range(len(layers)), [layer.bits for layer in layers], color=GREY, width=0.7)
    axes.set_xticks(range(len(layers)), [layer.name for layer in layers], rotation=90, fontsize=6.5, color=INK)
    axes.set_xlim(-1, len(layers))
    lined(axes, "y")
