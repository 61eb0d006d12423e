"""Published figures beside measured ones, each in a column that says which it is."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from rich.table import Table

from bench.results.record import Record
from bench.results.tables import columns
from bench.systems.ways import PLAIN
from bench.text.published import LENGTH, MNLI, SKETCHES, THROUGHPUTS, Throughput
from bench.text.results import Cell, Run, finished

_TABLES_MODEL = "roberta"  # that FewBit's figures are of


def tables(record: Record) -> Iterator[Table]:
    """GACT's throughputs where time was measured, FewBit's scores where a sketch was trained or timed."""
    timed = [cell for cell in record.of(Cell) if cell.seconds and cell.length == LENGTH]
    if any(cell.model in ("base", "large") for cell in timed):
        yield _throughputs(record)
    sketches = {sketch.way for sketch in SKETCHES} - {PLAIN}
    found = [cell.way for cell in timed if cell.way in sketches]
    found += [run.way for run in record.of(Run) if run.way in sketches and run.fine_tuned]
    if found:
        yield _sketches(record)
        yield _mnli(record)


def _throughputs(record: Record) -> Table:
    table = columns(
        f"GACT: training, {LENGTH} tokens",
        "batch",
        "published\nsentences/s",
        "over full\nprecision",
        "measured\nway",
        "batch",
        "sentences/s",
        "over full\nprecision",
    )
    for one in THROUGHPUTS:
        cell = _of(record, one) if one.way else None
        table.add_row(
            f"{one.model}, {one.what}",
            "" if one.batch is None else str(one.batch),
            f"{one.sentences:.2f}",
            "" if one.plain is None else f"{one.sentences / one.plain:.2f}",
            "" if cell is None else cell.way,
            "" if cell is None else str(cell.batch),
            "" if cell is None or cell.throughput is None else f"{cell.throughput:.2f}",
            "" if cell is None or cell.ratio is None or cell.way == PLAIN else f"{1 / cell.ratio:.2f}",
        )
    return table


def _sketches(record: Record) -> Table:
    table = columns(
        "FewBit: CoLA by sketch",
        "published\nMatthews, %",
        "measured\nMatthews, %",
        "published\ntime over plain's",
        "measured\ntime over plain's",
    )
    plain = SKETCHES[0].minutes
    for sketch in SKETCHES:
        table.add_row(
            sketch.way,
            f"{sketch.score:.2f}",
            _score(record, "cola", sketch.way, "matthews"),
            f"{sketch.minutes / plain:.2f}",
            _time_over_plain(record, sketch.way),
        )
    return table


def _mnli(record: Record) -> Table:
    table = columns("FewBit: MNLI", "published\naccuracy, %", "measured\naccuracy, %")
    for way, score in MNLI.items():
        table.add_row(way, f"{score:.1f}", _score(record, "mnli", way, "accuracy"))
    return table


def _of(record: Record, one: Throughput) -> Cell | None:
    """At the same batch if it was measured, otherwise at any."""
    return timed(record, one.model, one.way, LENGTH, one.batch) or timed(record, one.model, one.way, LENGTH)


def _score(record: Record, task: str, way: str, metric: str) -> str:
    runs = [run for run in finished(record, _TABLES_MODEL, task, way) if run.fine_tuned]
    return f"{fmean(run.metrics[metric] for run in runs):.2f}" if runs else ""


def _time_over_plain(record: Record, way: str) -> str:
    """Of FewBit's network if it was timed, otherwise of BERT-base, which has the same layers."""
    for model in (_TABLES_MODEL, "base"):
        cell = timed(record, model, way, LENGTH)
        if cell is not None and cell.ratio is not None:
            return f"{cell.ratio:.2f}"
    return ""


def timed(record: Record, model: str, way: str, length: int, batch: int | None = None) -> Cell | None:
    """A cell whose steps were timed, of a network in a way; of any batch, if none is named."""
    found = (cell for cell in record.of(Cell, model=model, way=way, length=length) if cell.seconds)
    return next((cell for cell in found if batch in (None, cell.batch)), None)
