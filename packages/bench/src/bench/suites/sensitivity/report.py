"""What is printed of ``python -m bench sensitivity``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from rich.console import RenderableType
from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import marked, table
from bench.suites.sensitivity.chart import draw
from bench.suites.sensitivity.results import Sensitivities
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
