"""The tables and the chart of ``python -m bench sensitivity``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table

from bench.errors import BenchError
from bench.results.charts import BLUE, FAINT, GREEN, GREY, PURPLE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import marked, table
from bench.suites.sensitivity.entries import Sensitivities
from bench.units import KIB

_LOOKS = {
    "resnet18": ("ResNet-18", BLUE, "o"),
    "vit_tiny": ("ViT-tiny", PURPLE, "D"),
    "bert": ("BERT", GREEN, "s"),
    "gcn": ("GCN", VERMILION, "^"),
}


def draw(record: Record) -> Figure:
    """Two panels.

    Raises:
        BenchError: no model was measured.
    """
    models = record.measured(Sensitivities)
    if not models:
        raise BenchError("a chart shows models; measure one of them")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=(1, 1.15))
    _draw_sensitivities(left, models)
    _draw_errors(right, models, record)
    pairs = max(len(model.references) for model in models)
    footer(figure, f"{pairs} pairs of seeds, {len(models[0].plain_errors)} steps.", record.machine)
    figure.subplots_adjust(left=0.07, right=0.98, top=0.91, bottom=0.23, wspace=0.25)
    return figure


def _draw_sensitivities(axes: Axes, models: Sequence[Sensitivities]) -> None:
    """Each model's largest is 1: how models compare with each other says nothing."""
    lowest = 1.0
    for model in models:
        if not model.references:
            continue
        name, colour, marker = _LOOKS[model.model]
        reference = [fmean(values) for values in zip(*model.references, strict=True)]
        shown = [
            (known / max(reference), found / max(model.estimates[0]))
            for known, found in zip(reference, model.estimates[0], strict=True)
            if known > 0 and found > 0
        ]
        lowest = min(lowest, *(value for point in shown for value in point))
        label = f"{name}, {len(shown)} tensors: {model.correlation_of_one:.3f}"
        axes.plot(*zip(*shown, strict=True), marker, color=colour, markersize=6, markeredgecolor="white", label=label)
    axes.plot([lowest / 2, 2], [lowest / 2, 2], color=GREY, linewidth=1, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("GACT's two-seed estimate, two passes a tensor and pair")
    axes.set_ylabel("one ordinary backward pass")
    lined(axes)
    axes.legend(frameon=False, loc="lower right", fontsize=9, title="rank correlation", alignment="left")
    titled(axes, "Sensitivity of each tensor, largest 1")


def _draw_errors(axes: Axes, models: Sequence[Sensitivities], record: Record) -> None:
    bits, level = record.settings["bits"], record.settings["level"]
    for place, model in enumerate(models):
        plain, planned = fmean(model.plain_errors), fmean(model.planned_errors)
        colour = _LOOKS[model.model][1]
        axes.barh(place - 0.19, plain, height=0.36, color=GREY)
        axes.barh(place + 0.19, planned, height=0.36, color=colour)
        for value, words, bar in (
            (plain, f"all {bits} bits", place - 0.19),
            (planned, f"{level}: {model.error_ratio:.2f} of it", place + 0.19),
        ):
            beside(axes, f"{value:.3f}  {words}", (value, bar), (5, 0), va="center")
    axes.set_yticks(range(len(models)), [_LOOKS[model.model][0] for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    axes.set_xlabel("of the whole gradient, relative to full precision")
    axes.xaxis.label.set_color(FAINT)
    lined(axes, "x")
    titled(axes, "The gradient's error, at equal bytes")


CORRELATION, SPLIT_HALF, RATIO = 0.9, 0.98, 0.5  # at least, at least, at most


def tables(record: Record) -> Iterator[Table]:
    """One, of all models."""
    bits, level = record.settings["bits"], record.settings["level"]
    yield table(
        record.measured(Sensitivities),
        ("model", lambda model: model.model),
        ("tensors", lambda model: str(len(model.tensors))),
        ("correlation\none pass", lambda model: _correlation(model, model.correlation_of_one, CORRELATION)),
        ("correlation\nall passes", lambda model: _correlation(model, model.correlation, CORRELATION)),
        ("reference\nsplit half", lambda model: _correlation(model, model.split_half, SPLIT_HALF)),
        (f"all {bits} bits\nKiB", lambda model: f"{model.plain_bytes / KIB:,.1f}"),
        (f"{level}\nKiB", lambda model: f"{model.planned_bytes / KIB:,.1f}"),
        (f"all {bits} bits\nerror", lambda model: f"{fmean(model.plain_errors):.3f}"),
        (f"{level}\nerror", lambda model: f"{fmean(model.planned_errors):.3f}"),
        ("predicted", lambda model: f"{model.predicted:.3f}"),
        ("ratio", lambda model: marked(f"{model.error_ratio:.2f}", model.error_ratio <= RATIO)),
    )


def _correlation(model: Sensitivities, value: float, least: float) -> RenderableType:
    return marked(f"{value:.3f}", value >= least) if model.references else ""


def notes(record: Record) -> Iterator[str]:
    """What stands below the table."""
    models = record.of(Sensitivities)
    yield from (f"{model.model}: {model.reason or model.what}." for model in models)
    pairs = max((len(model.references) for model in models), default=0)
    yield (
        "correlation: Spearman's, over tensors, of the sensitivities by the backward pass of one step (and the mean of "
        f"several) with GACT's two-seed estimate, the mean of {pairs} pairs of seeds at a pass a tensor each; "
        "split half: the same between two halves of the pairs. error: of the whole gradient, relative, with every "
        f"quantised tensor in {record.settings['bits']} bits, and with the plan."
    )


def targets(record: Record) -> Iterator[str]:
    """What was asked."""
    yield f"correlation {CORRELATION}, split half {SPLIT_HALF}, ratio {RATIO}"


REPORT = Report("Which tensors matter, and what it buys to know", tables, notes, targets, draw=draw)
