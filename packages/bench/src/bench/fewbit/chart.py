"""The chart: a panel for each part that was run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.errors import BenchError
from bench.fewbit.results import FewBitResults
from bench.fewbit.training import KINDS, STRIDE
from bench.style import BLUE, FAINT, GREY, GRID, INK, STYLE, VERMILION, footer, require_drawable, write
from bench.units import MIB


def save_chart(results: FewBitResults, path: Path) -> None:
    """Draws results into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: nothing was measured, the type is unknown, or the file cannot be written.
    """
    require_drawable(path)
    panels: list[Callable[[Axes, FewBitResults], None]] = []
    if any(peak.raw_bytes for peak in results.peaks):
        panels.append(_draw_memory)
    if results.runs:
        panels.append(_draw_training)
    if results.times:
        panels.append(_draw_times)
    if not panels:
        raise BenchError("there is nothing to draw: no part was measured; the text above says why")
    with mpl.rc_context(STYLE):
        write(_draw(results, panels), path)


def _draw(results: FewBitResults, panels: list[Callable[[Axes, FewBitResults], None]]) -> Figure:
    figure, row = plt.subplots(1, len(panels), figsize=(1.5 + 5 * len(panels), 4.6), squeeze=False)
    for axes, draw in zip(row[0], panels, strict=True):
        draw(axes, results)
        axes.set_axisbelow(True)
    footer(figure, "python -m bench fewbit.", results.machine)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure


def _draw_memory(axes: Axes, results: FewBitResults) -> None:
    plain = results.peaks[0].activation_bytes
    for place, peak in enumerate(results.peaks):
        axes.barh(place, plain / MIB, color=GREY, height=0.62)
        axes.barh(place, peak.activation_bytes / MIB, color=BLUE, height=0.62)
        saving = "" if place == 0 else f"-{100 * (1 - peak.activation_bytes / plain):.1f} %"
        axes.annotate(saving, (plain / MIB, place), (5, 0), textcoords="offset points", va="center", weight="bold")
    axes.set_yticks(range(len(results.peaks)), [peak.way for peak in results.peaks])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.margins(x=0.18)
    axes.set_xlabel(f"MiB, batch {results.batch}")
    axes.set_title("Activation peak of RoBERTa", loc="left", fontsize=11, weight="bold")


def _draw_training(axes: Axes, results: FewBitResults) -> None:
    for kind, colour, width in zip(KINDS, (GREY, BLUE, VERMILION), (4.5, 2.8, 1.2), strict=True):
        curves = [run.losses for run in results.runs if run.kind == kind]
        if not curves:
            continue
        means = [fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(
            [STRIDE * place for place in range(1, len(means) + 1)], means, color=colour, linewidth=width, label=kind
        )
    axes.axhline(results.entropy, color=FAINT, linewidth=1, linestyle="--")
    axes.annotate(
        "entropy of the held-out words",
        (1, results.entropy),
        (0, 4),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        color=FAINT,
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.legend(frameon=False, loc="lower left", title="GELU")
    axes.set_xlabel("steps")
    axes.set_title(f"Training loss, nats, mean of {results.held_out().seeds}", loc="left", fontsize=11, weight="bold")


def _draw_times(axes: Axes, results: FewBitResults) -> None:
    names = [times.name if times.what == "activation" else f"linear, {times.name}" for times in results.times]
    axes.barh(range(len(names)), [times.ratio for times in results.times], color=BLUE, height=0.7)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    rounds = len(results.times[0].seconds)
    axes.set_xlabel(f"forward + backward over torch's, median of {rounds} rounds")
    axes.set_title("Time", loc="left", fontsize=11, weight="bold")
