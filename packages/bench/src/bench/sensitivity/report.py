"""Results of ``python -m bench sensitivity`` as text."""

from __future__ import annotations

from statistics import fmean

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.marks import marked
from bench.sensitivity.results import SensitivityResults
from bench.units import KIB

CORRELATION, SPLIT_HALF, RATIO = 0.9, 0.98, 0.5  # at least, at least, at most


def render(results: SensitivityResults) -> RenderableType:
    """Header, table and notes."""
    header = Text.assemble(
        ("Which tensors matter, and what it buys to know\n", "bold"),
        ("machine  ", "dim"),
        f"{results.machine}\n",
        ("command  ", "dim"),
        f"{results.machine.command}; {results.seconds / 60:.1f} minutes\n",
    )
    return Group(header, _table(results), _notes(results))


def _table(results: SensitivityResults) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("model", no_wrap=True)
    for heading in (
        "tensors",
        "correlation\none pass",
        "correlation\nall passes",
        "reference\nsplit half",
        f"all {results.bits} bits\nKiB",
        f"{results.level}\nKiB",
        f"all {results.bits} bits\nerror",
        f"{results.level}\nerror",
        "predicted",
        "ratio",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in results.models:
        table.add_row(
            model.model,
            str(len(model.tensors)),
            *(
                marked(f"{value:.3f}", value >= least) if model.references else ""
                for value, least in (
                    (model.correlation_of_one, CORRELATION),
                    (model.correlation, CORRELATION),
                    (model.split_half, SPLIT_HALF),
                )
            ),
            f"{model.plain_bytes / KIB:,.1f}",
            f"{model.planned_bytes / KIB:,.1f}",
            f"{fmean(model.plain_errors):.3f}",
            f"{fmean(model.planned_errors):.3f}",
            f"{model.predicted:.3f}",
            marked(f"{model.error_ratio:.2f}", model.error_ratio <= RATIO),
        )
    return table


def _notes(results: SensitivityResults) -> Text:
    pairs = max((len(model.references) for model in results.models), default=0)
    lines = [f"{model.model}: {model.what}." for model in results.models]
    lines.append(
        "correlation: Spearman's, over tensors, of the sensitivities by the backward pass of one step (and the mean of "
        f"several) with GACT's two-seed estimate, the mean of {pairs} pairs of seeds at a pass a tensor each; "
        "split half: the same between two halves of the pairs. error: of the whole gradient, relative, with every "
        f"quantised tensor in {results.bits} bits, and with the plan. "
        f"✓ reached, ✗ not: correlation {CORRELATION}, split half {SPLIT_HALF}, ratio {RATIO}."
    )
    return Text("\n".join(lines), style="dim")
