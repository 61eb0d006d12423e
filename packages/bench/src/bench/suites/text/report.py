"""The tables and the chart of ``python -m bench text``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from bench.results.charts import VERMILION, Panel, Series
from bench.results.published import published
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, dim, interval, mean, mib, milliseconds, number, percent, short, table
from bench.suites.text.entries import Cell, Facts, Run, difference, finished, smaller, trained
from bench.ways.general import PLAIN
from bench.ways.text import CONTROL

LENGTH = 128
"""Tokens of the sentences of which times were published."""

PUBLISHED = published("text")


def _ways(record: Record, model: str, task: str) -> dict[str, float]:
    """What each way stores, in percent of plain."""
    found = {}
    for way in record.values(Run, "way", model=model, task=task):
        times = smaller(record, model, task, way)
        if way != PLAIN and times and difference(record, model, task, way, lambda run: run.held_out):
            found[way] = 100 / times
    return found


_TABLES_MODEL = "roberta"  # that FewBit's figures are of


def tables(record: Record) -> Iterator[Table]:
    """One for each network and task, of memory and of time, and what was published."""
    for model, task in trained(record):
        yield _accuracy(record, model, task)
    shapes = dict.fromkeys((cell.model, cell.batch, cell.length) for cell in record.of(Cell))
    for model, batch, length in shapes:
        cells = record.of(Cell, model=model, batch=batch, length=length)
        if any(cell.live_bytes or cell.not_measured or not cell.seconds for cell in cells):
            yield _memory(f"memory of {model}, {batch} x {length} tokens", cells)
        if any(cell.seconds for cell in cells):
            yield _time(f"time of {model}, {batch} x {length} tokens", cells)
    yield from published_tables(record)


def _accuracy(record: Record, model: str, task: str) -> Table:
    facts = record.find(Facts, task=task)
    names = list(facts.majority if facts else ())
    done = {way: finished(record, model, task, way) for way in record.values(Run, "way", model=model, task=task)}

    def reasons(way: str) -> str:
        failed = [run.reason for run in record.of(Run, model=model, task=task, way=way) if not run.done]
        return short("; ".join(dict.fromkeys(failed)))

    def points(way: str) -> str:
        """The difference of the first metric, which the task is known by."""
        return interval(difference(record, model, task, way, lambda run: run.metrics[names[0]]), 2) if names else ""

    def metric(name: str) -> Column[str]:
        return f"{name}\n%", lambda way: mean([run.metrics[name] for run in done[way]], 1)

    made = table(
        done,
        (f"{task}, {model}", lambda way: way),
        ("seeds", lambda way: str(len(done[way]))),
        *map(metric, names),
        ("difference\npoints", points),
        ("held-out\nloss", lambda way: mean([run.held_out for run in done[way]], 3)),
        ("\ndifference", lambda way: interval(difference(record, model, task, way, lambda run: run.held_out), 4)),
        ("times\nsmaller", lambda way: number(smaller(record, model, task, way), ".1f")),
        ("", lambda way: dim(reasons(way))),
    )
    for row in _yardsticks(facts, names):
        made.add_row(*row, style="dim")
    return made


def _yardsticks(facts: Facts | None, names: Sequence[str]) -> Iterator[list[str]]:
    """Rows of who was not trained."""
    if facts is None:
        return
    majority = [f"{facts.majority[name]:.1f}" for name in names]
    yield ["(one answer for all)", "", *majority, "", f"{facts.frequency_loss:.3f}", "", "", ""]
    if facts.ceiling is not None:
        yield ["(who knows the rule)", "", f"{facts.ceiling:.1f}", *[""] * len(names), "0.000", "", "", ""]


def _memory(heading: str, cells: Sequence[Cell]) -> Table:
    plain = next((cell for cell in cells if cell.way == PLAIN), None)
    original, peak, whole = (plain.original_bytes, plain.peak_bytes, plain.whole_bytes) if plain else (None,) * 3

    def times(cell: Cell) -> str:
        return f"{original / cell.stored_bytes:.1f}" if original and cell.stored_bytes else ""

    return table(
        cells,
        (heading, lambda cell: cell.way),
        ("kept\nMiB", lambda cell: mib(cell.original_bytes if cell.way == PLAIN else cell.stored_bytes)),
        ("times\nsmaller", times),
        ("live\nMiB", lambda cell: mib(cell.live_bytes)),
        ("peak\nMiB", lambda cell: mib(cell.peak_bytes)),
        ("\nof plain's, %", lambda cell: percent(cell.peak_bytes, peak)),
        ("with gradients\nMiB", lambda cell: mib(cell.whole_bytes)),
        ("\nof plain's, %", lambda cell: percent(cell.whole_bytes, whole)),
        ("", lambda cell: dim(short(cell.reason))),
    )


def _time(heading: str, cells: Sequence[Cell]) -> Table:
    return table(
        cells,
        (heading, lambda cell: cell.way),
        ("step\nms", lambda cell: milliseconds(cell.seconds)),
        ("sentences\na second", lambda cell: number(cell.throughput, ",.2f")),
        ("time over\nplain's", lambda cell: number(cell.ratio, ".2f")),
        ("", lambda cell: dim(short(cell.reason))),
    )


def published_tables(record: Record) -> Iterator[Table]:
    """GACT's throughputs where time was measured, FewBit's scores where a sketch was trained or timed."""
    timed = [cell for cell in record.of(Cell) if cell.seconds and cell.length == LENGTH]
    if any(cell.model in ("base", "large") for cell in timed):
        yield _throughputs(record)
    sketches = {sketch["way"] for sketch in PUBLISHED["sketches"]} - {PLAIN}
    found = [cell.way for cell in timed if cell.way in sketches]
    found += [run.way for run in record.of(Run) if run.way in sketches and run.fine_tuned]
    if found:
        yield _sketches(record)
        yield _mnli(record)


def _throughputs(record: Record) -> Table:
    rows = [(one, _cell_beside(record, one) if one["way"] else None) for one in PUBLISHED["throughputs"]]
    return table(
        rows,
        (f"GACT: training, {LENGTH} tokens", lambda row: f"{row[0]['model']}, {row[0]['what']}"),
        ("batch", lambda row: number(row[0]["batch"], "d")),
        ("published\nsentences/s", lambda row: f"{row[0]['sentences']:.2f}"),
        ("over full\nprecision", lambda row: number(row[0]["plain"] and row[0]["sentences"] / row[0]["plain"], ".2f")),
        ("measured\nway", lambda row: row[1].way if row[1] else ""),
        ("batch", lambda row: str(row[1].batch) if row[1] else ""),
        ("sentences/s", lambda row: number(row[1].throughput, ".2f") if row[1] else ""),
        ("over full\nprecision", lambda row: _speed(row[1])),
    )


def _speed(cell: Cell | None) -> str:
    return "" if cell is None or cell.ratio is None or cell.way == PLAIN else f"{1 / cell.ratio:.2f}"


def _sketches(record: Record) -> Table:
    plain = PUBLISHED["sketches"][0]["minutes"]
    return table(
        PUBLISHED["sketches"],
        ("FewBit: CoLA by sketch", lambda sketch: sketch["way"]),
        ("published\nMatthews, %", lambda sketch: f"{sketch['score']:.2f}"),
        ("measured\nMatthews, %", lambda sketch: _score(record, "cola", sketch["way"], "matthews")),
        ("published\ntime over plain's", lambda sketch: f"{sketch['minutes'] / plain:.2f}"),
        ("measured\ntime over plain's", lambda sketch: _time_over_plain(record, sketch["way"])),
    )


def _mnli(record: Record) -> Table:
    return table(
        PUBLISHED["mnli"].items(),
        ("FewBit: MNLI", lambda row: row[0]),
        ("published\naccuracy, %", lambda row: f"{row[1]:.1f}"),
        ("measured\naccuracy, %", lambda row: _score(record, "mnli", row[0], "accuracy")),
    )


def _cell_beside(record: Record, one: dict[str, Any]) -> Cell | None:
    """At the same batch if it was measured, otherwise at any."""
    return timed(record, one["model"], one["way"], LENGTH, one["batch"]) or timed(
        record, one["model"], one["way"], LENGTH
    )


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


def notes(record: Record) -> Iterator[str]:
    """The tasks' sentences, whether losses tell the control from plain training, and sources of published numbers."""
    for facts in record.of(Facts):
        yield f"{facts.task}: {facts.what}."
    for model, task in trained(record):
        control = difference(record, model, task, CONTROL, lambda run: run.held_out)
        if control is not None and control.low is not None and control.high is not None:
            told = "tell" if control.low > 0 or control.high < 0 else "do not tell"
            found = interval(control, 3)
            yield f"{task}, {model}: losses {told} runs whose gradients are zero from plain ones, {found}."
    if any(True for _ in published_tables(record)):
        yield f"published: {'; '.join(PUBLISHED['sources'].values())}. What GACT calls L1 for BERT is our L2."


def panels(record: Record) -> list[Panel]:
    """The held-out loss's difference from plain against stored bytes, a panel for each network and task."""
    found = []
    for model, task in trained(record):
        points = []
        for way, part in _ways(record, model, task).items():
            one = difference(record, model, task, way, lambda run: run.held_out)
            if one is not None:
                ends = () if one.low is None or one.high is None else ((one.low, one.high),)
                points.append(Series([part], [one.mean], names=[way], intervals=ends))
        control = difference(record, model, task, CONTROL, lambda run: run.held_out)
        if points and control is not None:
            points.append(Series([0, 100], [control.mean] * 2, CONTROL, VERMILION, "--"))
        if points:
            labels = "stored activations, % of plain's", "loss less plain's"
            found.append(Panel(f"{task}, {model}", *labels, series=points, line=0))
    return found


CAPTION = "Held-out loss less plain's of the same seed, 95 % interval."
REPORT = Report("BERT on GLUE's tasks, in every way", tables, notes, panels=panels, caption=lambda record: CAPTION)
