"""What is printed of ``python -m bench text``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, dim, interval, mean, mib, milliseconds, number, percent, short, table
from bench.systems.ways import PLAIN
from bench.text import beside
from bench.text.chart import draw
from bench.text.notes import notes
from bench.text.results import Cell, Facts, Run, difference, finished, smaller, trained


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
    yield from beside.tables(record)


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


REPORT = Report("BERT on GLUE's tasks, in every way", tables, notes, draw=draw)
