"""The chart: a panel for each part that was run."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.results.charts import BLUE, FAINT, GREY, INK, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.suites.fewbit.results import BertRun, Peak, Times, held_out
from bench.suites.fewbit.training import KINDS, STRIDE
from bench.units import MIB


def draw(record: Record) -> Figure:
    """A panel for each part.

    Raises:
        BenchError: nothing was measured.
    """
    drawn: tuple[tuple[list[Any], Callable[[Axes, Record], None]], ...] = (
        (_peaks(record), _draw_memory),
        (record.of(BertRun), _draw_training),
        (record.of(Times), _draw_times),
    )
    panels = [panel for found, panel in drawn if found]
    if not panels:
        raise BenchError("there is nothing to draw: no part was measured; the text above says why")
    figure, row = plt.subplots(1, len(panels), figsize=(1.5 + 5 * len(panels), 4.6), squeeze=False)
    for axes, panel in zip(row[0], panels, strict=True):
        panel(axes, record)
        axes.set_axisbelow(True)
    footer(figure, "python -m bench fewbit.", record.machine)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure


def _peaks(record: Record) -> list[Peak]:
    """Of the first network that was measured."""
    found = [peak for peak in record.of(Peak) if peak.raw_bytes]
    return [peak for peak in found if (peak.network, peak.batch) == (found[0].network, found[0].batch)]


def _draw_memory(axes: Axes, record: Record) -> None:
    peaks = _peaks(record)
    plain = peaks[0].activation_bytes
    for place, peak in enumerate(peaks):
        axes.barh(place, plain / MIB, color=GREY, height=0.62)
        axes.barh(place, peak.activation_bytes / MIB, color=BLUE, height=0.62)
        saving = "" if place == 0 else f"-{100 * (1 - peak.activation_bytes / plain):.1f} %"
        beside(axes, saving, (plain / MIB, place), (5, 0), va="center", weight="bold")
    axes.set_yticks(range(len(peaks)), [peak.way for peak in peaks])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    axes.margins(x=0.18)
    axes.set_xlabel(f"MiB, batch {peaks[0].batch}")
    titled(axes, "Activation peak of RoBERTa")


def _draw_training(axes: Axes, record: Record) -> None:
    for kind, colour, width in zip(KINDS, (GREY, BLUE, VERMILION), (4.5, 2.8, 1.2), strict=True):
        curves = [run.losses for run in record.of(BertRun) if run.kind == kind]
        if not curves:
            continue
        means = [fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(
            [STRIDE * place for place in range(1, len(means) + 1)], means, color=colour, linewidth=width, label=kind
        )
    axes.axhline(record.settings["entropy"], color=FAINT, linewidth=1, linestyle="--")
    at, words = (1, record.settings["entropy"]), "entropy of the held-out words"
    beside(axes, words, at, (0, 4), xycoords=("axes fraction", "data"), ha="right", color=FAINT)
    lined(axes, "y")
    axes.legend(frameon=False, loc="lower left", title="GELU")
    axes.set_xlabel("steps")
    titled(axes, f"Training loss, nats, mean of {held_out(record).seeds}")


def _draw_times(axes: Axes, record: Record) -> None:
    found = record.of(Times)
    names = [times.name if times.what == "activation" else f"linear, {times.name}" for times in found]
    axes.barh(range(len(names)), [times.ratio for times in found], color=BLUE, height=0.7)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    rounds = len(found[0].seconds)
    axes.set_xlabel(f"forward + backward over torch's, median of {rounds} rounds")
    titled(axes, "Time")
