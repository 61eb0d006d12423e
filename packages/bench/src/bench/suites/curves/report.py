"""The tables and the chart of ``python -m bench curves``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean

from rich.table import Table
from rich.text import Text

from bench.results.charts import BLUE, INK, ORANGE, VERMILION, Panel, Series
from bench.results.record import Record, paired
from bench.results.report import Report
from bench.results.statistics import Difference
from bench.results.tables import interval, marked, mean, mib, number, percent, table
from bench.runner.memory import Memory
from bench.suites.curves.entries import LEAST, WAYS, Trained
from bench.ways.general import PLAIN

COLOURS = {PLAIN: INK, "L1": BLUE, "lean": ORANGE, LEAST: VERMILION}
VALUES: dict[str, tuple[Callable[[Trained], float], int, int]] = {
    "training loss\nat the end": (lambda one: one.end, 4, 1),
    "held-out loss": (lambda one: one.held_out or 0.0, 4, 1),
    "accuracy, %": (lambda one: one.accuracy, 2, -1),
}
"""By heading: the value, its decimal places, and the sign of a difference that is worse."""


def tables(record: Record) -> Iterator[Table]:
    """One of each task."""
    for task in record.values(Trained, "task"):
        yield _task(record, task)


def _task(record: Record, task: str) -> Table:
    def value(heading: str, way: str) -> Text | str:
        read, places, worse = VALUES[heading]
        if way == PLAIN:
            return marked(mean([read(one) for one in _done(record, task, way)], places), None)
        found = _difference(record, task, way, heading)
        return marked(interval(found, places), False if _excludes_zero(found, worse) else None)

    def peak(way: str) -> str:
        own, plain = (_peak(record, task, one) for one in (way, PLAIN))
        share = percent(own, plain)
        return mib(own) if way == PLAIN or not share else f"{mib(own)} ({share} %)"

    def error(way: str) -> str:
        found = [one.error for one in _done(record, task, way)]
        return "" if way == PLAIN else number(max(found, default=None), ".3f")

    return table(
        record.values(Trained, "way", task=task),
        (task, str),
        *((heading, partial(value, heading)) for heading in VALUES),
        ("peak of a step\nMiB", peak),
        ("error of\nthe gradient", error),
    )


def _done(record: Record, task: str, way: str) -> list[Trained]:
    return [one for one in record.of(Trained, task=task, way=way) if one.losses]


def _peak(record: Record, task: str, way: str) -> int | None:
    found = record.find(Memory, model=task, level=way)
    return None if found is None else found.peak_bytes


def _difference(record: Record, task: str, way: str, heading: str) -> Difference | None:
    return paired(_done(record, task, way), _done(record, task, PLAIN), VALUES[heading][0])


def _excludes_zero(found: Difference | None, side: int) -> bool:
    """Whether a whole interval is on one side of zero: 1 above, -1 below."""
    if found is None or found.low is None or found.high is None:
        return False
    return min(side * found.low, side * found.high) > 0


def notes(record: Record) -> Iterator[str]:
    """The tasks, how many differences there are, and what is not shown."""
    yield from (f"{task}: {words}." for task, words in record.settings.get("tasks", {}).items())
    found = [
        (_difference(record, task, way, heading), worse)
        for task in record.values(Trained, "task")
        for way in record.values(Trained, "way", task=task)
        if way != PLAIN
        for heading, (_, _, worse) in VALUES.items()
    ]
    yield (
        "Plain: mean and standard deviation over seeds. Others: mean difference from plain with the same seed, and its "
        "95 % interval."
    )
    count, better = (sum(_excludes_zero(one, sign * worse) for one, worse in found) for sign in (1, -1))
    yield (
        f"✗: the interval is on the worse side of zero, in {count} of {len(found)} comparisons; {better} are on the "
        "better side. Of comparisons without any difference, one in 40 is on each side. Differences within "
        "an interval are not excluded."
    )
    yield "Not shown: larger or pretrained models, trainings until convergence, and dtypes other than float32."


def panels(record: Record) -> list[Panel]:
    """The loss of each task in each way, the mean over seeds."""
    found = []
    for task in record.values(Trained, "task"):
        series = []
        for way in WAYS:
            curves = [one.losses for one in _done(record, task, way)]
            if curves:
                y = [fmean(part) for part in zip(*curves, strict=True)]
                x = [100 * (place + 1) / len(y) for place in range(len(y))]
                series.append(Series(x, y, way, COLOURS[way], "-"))
        if series:
            found.append(Panel(task, "% of the steps", "training loss", series=series))
    return found


CAPTION = "The training loss, mean over seeds. In each seed, all ways have the same weights and batches."
REPORT = Report("Training curves", tables, notes, panels=panels, caption=lambda record: CAPTION)
