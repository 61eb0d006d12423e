"""Results of ``python -m bench llm`` as text."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.errors import BenchError
from bench.layout import columns, header
from bench.llm.results import LlmResults, Trained
from bench.llm.subjects import CHUNKED, LOSS, MODEL, SUBJECTS
from bench.marks import marked
from bench.units import MIB

# Of the loss of 4,096 rows of 512 features with 32,000 classes in float32: asked for, at most.
_PEAK, _LOSS_ERROR, _TIME = 90 * MIB, 1e-6, 1.1
_ASKED = ("loss-32k", CHUNKED)


def render(results: LlmResults) -> RenderableType:
    """Header, a table of losses and one of models, and notes."""
    return Group(
        header("Language models: the loss", results.machine, results.seconds),
        *(_table(results, kind, name) for kind, name in ((LOSS, "loss of"), (MODEL, "model"))),
        Text("\n".join(_notes(results)), style="dim"),
    )


def no_chart(results: LlmResults, path: Path) -> None:
    """Raises ``BenchError``: the tables say it all."""
    raise BenchError("llm has no chart; leave --chart out, the tables say it all")


def _table(results: LlmResults, kind: str, name: str) -> Table:
    table = columns(
        name,
        "way",
        "peak of a step\nMiB",
        "without gradients\nMiB",
        "error of\nthe gradient",
        "of the loss",
        "time",
        labels=2,
    )
    first: dict[str, Trained] = {}
    for cell in results.cells:
        if SUBJECTS[cell.subject].kind != kind:
            continue
        plain = first.setdefault(cell.subject, cell)
        what = SUBJECTS[cell.subject].what if plain is cell else ""
        if cell.failure or cell.peak is None:
            table.add_row(what, cell.way, "", "", "", "", "", style="dim")
            continue
        asked = (cell.subject, cell.way) == _ASKED
        time = cell.times(plain) if plain.seconds and cell is not plain else None
        table.add_row(
            what,
            cell.way,
            marked(f"{cell.peak / MIB:,.1f}", cell.peak <= _PEAK if asked else None),
            f"{max(0, cell.peak - cell.gradients) / MIB:,.1f}",
            f"{cell.error:.1e}" if cell.error else "0",
            marked(f"{cell.loss_error:.1e}", cell.loss_error <= _LOSS_ERROR if asked else None) if kind == LOSS else "",
            _time(cell, plain, time),
        )
    return table


def _time(cell: Trained, plain: Trained, time: float | None) -> Text:
    if time is None:
        return Text(f"1 ({1000 * min(cell.seconds):,.0f} ms)  ") if cell.seconds else Text("")
    return marked(f"{time:.2f}", time <= _TIME if cell.way == CHUNKED and SUBJECTS[cell.subject].kind == LOSS else None)


def _notes(results: LlmResults) -> list[str]:
    failed = [f"{cell.subject}, {cell.way}: {cell.failure}." for cell in results.cells if cell.failure]
    return [
        *failed,
        "peak: the most that the process has resident in a step beyond what it had before, gradients that the step "
        "makes among it; beside it what is left of that without these. error: a loss's to float64, a model's to plain "
        f"training's. time: of a step over the first way's, in turn, the median of {results.rounds} rounds. Each way "
        "has a process of its own. ✓ reached, ✗ not: of the first loss in chunks 90 MiB and 1e-6, and of losses in "
        "chunks 1.1 of the dense time.",
    ]
