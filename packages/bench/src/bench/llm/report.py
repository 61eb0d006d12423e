"""What is printed of ``python -m bench llm``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.llm.results import Trained
from bench.llm.subjects import CHUNKED, LOSS, MODEL, SUBJECTS
from bench.marks import marked
from bench.record.bench import Report
from bench.record.record import Record
from bench.record.tables import mib, table
from bench.units import MIB

# Of the loss of 4,096 rows of 512 features with 32,000 classes in float32: asked for, at most.
_PEAK, _LOSS_ERROR, _TIME = 90 * MIB, 1e-6, 1.1
_ASKED = ("loss-32k", CHUNKED)


def tables(record: Record) -> Iterator[Table]:
    """One of losses and one of models."""
    for kind, name in ((LOSS, "loss of"), (MODEL, "model")):
        cells = [cell for cell in record.of(Trained) if SUBJECTS[cell.subject].kind == kind]
        first: dict[str, Trained] = {}
        for cell in cells:
            first.setdefault(cell.subject, cell)
        yield _table(name, cells, first)


def _table(name: str, cells: list[Trained], first: dict[str, Trained]) -> Table:
    return table(
        cells,
        (name, lambda cell: SUBJECTS[cell.subject].what if cell is first[cell.subject] else ""),
        ("way", lambda cell: cell.way),
        ("peak of a step\nMiB", _peak),
        ("without gradients\nMiB", lambda cell: mib(max(0, (cell.peak or 0) - cell.gradients))),
        ("error of\nthe gradient", lambda cell: f"{cell.error:.1e}" if cell.error else "0"),
        ("of the loss", _loss_error),
        ("time", lambda cell: _time(cell, first[cell.subject])),
        labels=2,
        instead=lambda cell: [""] * 5 if cell.failure or cell.peak is None else None,
    )


def _peak(cell: Trained) -> Text:
    return marked(mib(cell.peak), (cell.peak or 0) <= _PEAK if _asked(cell) else None)


def _asked(cell: Trained) -> bool:
    return (cell.subject, cell.way) == _ASKED


def _loss_error(cell: Trained) -> RenderableType:
    if SUBJECTS[cell.subject].kind != LOSS:
        return ""
    return marked(f"{cell.loss_error:.1e}", cell.loss_error <= _LOSS_ERROR if _asked(cell) else None)


def _time(cell: Trained, plain: Trained) -> Text:
    if cell is plain or not plain.seconds:
        return Text(f"1 ({1000 * min(cell.seconds):,.0f} ms)  ") if cell.seconds else Text("")
    time, judged = cell.times(plain), cell.way == CHUNKED and SUBJECTS[cell.subject].kind == LOSS
    return marked(f"{time:.2f}", time <= _TIME if judged else None)


def notes(record: Record) -> Iterator[str]:
    """What stands below the tables."""
    yield from (f"{cell.subject}, {cell.way}: {cell.failure}." for cell in record.of(Trained) if cell.failure)
    yield (
        "peak: the most that the process has resident in a step beyond what it had before, gradients that the step "
        "makes among it; beside it what is left of that without these. error: a loss's to float64, a model's to plain "
        f"training's. time: of a step over the first way's, in turn, the median of {record.settings['rounds']} rounds. "
        "Each way has a process of its own."
    )


def targets(record: Record) -> Iterator[str]:
    """What was asked."""
    yield "of the first loss in chunks 90 MiB and 1e-6, and of losses in chunks 1.1 of the dense time"


REPORT = Report("Language models: the loss", tables, notes, targets, draw="llm has no chart; the tables say it all")
