"""The tables and the chart of ``python -m bench sensitivity``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from rich.console import RenderableType
from rich.table import Table

from bench.results.charts import BLUE, GREEN, GREY, PURPLE, VERMILION, Bar, Panel, Series
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import marked, table
from bench.suites.sensitivity.entries import Sensitivities
from bench.units import KIB

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


def panels(record: Record) -> list[Panel]:
    """One pass's sensitivities beside the two-seed estimate, and the gradient's error that a plan saves."""
    points, bars = [], []
    for model, color in zip(record.measured(Sensitivities), (BLUE, PURPLE, GREEN, VERMILION), strict=False):
        if model.references:
            known = [fmean(values) for values in zip(*model.references, strict=True)]
            pairs = [(x, y) for x, y in zip(known, model.estimates[0], strict=True) if x > 0 and y > 0]
            # The largest is 1: models are not compared with each other.
            x = [one / max(known) for one, _ in pairs]
            y = [one / max(model.estimates[0]) for _, one in pairs]
            points.append(Series(x, y, f"{model.model}: {model.correlation_of_one:.3f}", color))
        plain, planned = fmean(model.plain_errors), fmean(model.planned_errors)
        bars.append(Bar(f"{model.model}, all {record.settings['bits']} bits", plain, GREY, words=f"{plain:.3f}"))
        bars.append(Bar(f"{model.model}, {record.settings['level']}", planned, color, words=f"{planned:.3f}"))
    if not bars:
        return []
    estimates = "GACT's two-seed estimate, two passes a tensor and pair", "one ordinary backward pass"
    left = Panel("Sensitivity of each tensor, rank correlation", *estimates, series=points, log="xy")
    label = "of the whole gradient, relative to full precision"
    return [left, Panel("The gradient's error, at equal bytes", label, bars=bars)]


def notes(record: Record) -> Iterator[str]:
    """What the models are."""
    yield from (f"{model.model}: {model.what}." for model in record.measured(Sensitivities))


def _caption(record: Record) -> str:
    models = record.measured(Sensitivities)
    pairs = max(len(model.references) for model in models)
    return f"{pairs} pairs of seeds, {len(models[0].plain_errors)} steps."


REPORT = Report("Which tensors matter, and what it buys to know", tables, notes, panels=panels, caption=_caption)
