"""The tables and the chart of ``python -m bench text``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from bench.errors import BenchError
from bench.results.charts import BLUE, INK, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, dim, interval, mean, mib, milliseconds, number, percent, short, table
from bench.suites.text.entries import Cell, Facts, Run, difference, finished, smaller, trained
from bench.ways.general import PLAIN
from bench.ways.text import CONTROL

GACT = "the benchmark's results in the history of GACT's repository (Liu et al., 2022)"
FEWBIT = "FewBit's notebook exp-matmul-post.ipynb (its stored output), RoBERTa-base on CoLA"
FEWBIT_PAPER = "arXiv 2201.13195 (Bershatsky et al., 2022), RoBERTa-base"


LENGTH = 128  # of sentences, in tokens, wherever time was published


@dataclass(frozen=True)
class Throughput:
    """Of GACT's benchmark: training, ``LENGTH`` tokens, on one GPU that its files do not name.

    Attributes:
        model: a name in ``bench.models.glue_networks.NETWORKS``.
        what: the way in GACT's words.
        way: ours that is closest to it; empty: none is.
        batch: sentences; ``None``: the source does not say.
        sentences: a second.
        plain: of full precision at the same batch; ``None`` where it does not fit or is not known.
    """

    model: str
    what: str
    way: str
    batch: int | None
    sentences: float
    plain: float | None = None


THROUGHPUTS = (
    Throughput("large", "full precision", "plain", 16, 17.66),
    Throughput("large", "4 bits, automatic", "L2", 16, 15.41, 17.66),
    Throughput("large", "4 bits, swapped", "", 16, 12.95, 16.41),
    Throughput("large", "4 bits, swapped, prefetched", "", 16, 13.52, 16.41),
    Throughput("large", "swapped as it is", "", 16, 6.02, 16.41),
    Throughput("large", "full precision, largest batch", "", 24, 17.6),
    Throughput("large", "4 bits, largest batch", "", 128, 14.5),
    Throughput("large", "checkpointed, largest batch", "", 308, 11.2),
    Throughput("large", "all of GACT, largest batch", "", 592, 8.13),
    Throughput("base", "4 bits, swapped", "", None, 39.9, 56.7),
    Throughput("base", "4 bits, swapped, prefetched", "", None, 42.1, 56.7),
    Throughput("base", "swapped as it is", "", None, 17.3, 56.7),
    Throughput("base", "full precision, largest batch", "", 104, 59.1),
    Throughput("base", "4 bits, largest batch", "", 456, 47.2),
    Throughput("base", "checkpointed, largest batch", "", 744, 37.9),
    Throughput("base", "all of GACT, largest batch", "", 1344, 27.2),
)


@dataclass(frozen=True)
class Sketch:
    """A row of FewBit's comparison of sketches.

    Attributes:
        way: a name that ``bench.ways.text`` knows.
        score: Matthews correlation on CoLA, in percent.
        minutes: of the training.
    """

    way: str
    score: float
    minutes: float


def _minutes(minutes: int, seconds: int) -> float:
    return minutes + seconds / 60


SKETCHES = (
    Sketch("plain", 60.90, _minutes(8, 44)),
    Sketch("linear 50 % dct", 59.17, _minutes(16, 26)),
    Sketch("linear 20 % dct", 58.81, _minutes(16, 37)),
    Sketch("linear 10 % dct", 53.38, _minutes(17, 24)),
    Sketch("linear 50 % dft", 59.05, _minutes(12, 20)),
    Sketch("linear 20 % dft", 60.60, _minutes(11, 42)),
    Sketch("linear 10 % dft", 47.62, _minutes(12, 25)),
    Sketch("linear 50 % gaussian", 58.60, _minutes(10, 36)),
    Sketch("linear 20 % gaussian", 57.79, _minutes(10, 2)),
    Sketch("linear 10 % gaussian", 56.52, _minutes(10, 3)),
    Sketch("linear 50 % rademacher", 62.38, _minutes(15, 27)),
    Sketch("linear 20 % rademacher", 59.11, _minutes(15, 38)),
    Sketch("linear 10 % rademacher", 55.50, _minutes(15, 43)),
)
"""One run each, whose seeds and spread are not known."""

MNLI = {"plain": 87.7, "linear 10 % gaussian": 86.4}
"""Accuracy, in percent. The kind of sketch is not named; FewBit's own default is the Gaussian one."""


def draw(record: Record) -> Figure:
    """A panel for each network and task.

    Raises:
        BenchError: no way was trained beside plain.
    """
    panels = [panel for panel in trained(record) if _ways(record, *panel)]
    if not panels:
        raise BenchError(
            "there is nothing to draw: no way that stores less was trained beside plain; see the text above"
        )
    figure, row = plt.subplots(1, len(panels), figsize=(0.8 + 5.6 * len(panels), 4.8), squeeze=False)
    for axes, (model, task) in zip(row[0], panels, strict=True):
        _draw_panel(axes, record, model, task)
    footer(figure, "Held-out loss less plain's of the same seed, 95 % interval; dashed: no gradient.", record.machine)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure


def _draw_panel(axes: Axes, record: Record, model: str, task: str) -> None:
    for way, part in _ways(record, model, task).items():
        found = difference(record, model, task, way, lambda run: run.held_out)
        assert found is not None
        if found.low is not None and found.high is not None:
            axes.plot([part, part], [found.low, found.high], color=BLUE, linewidth=1.5)
        axes.plot(part, found.mean, "o", color=BLUE, markeredgecolor="white", zorder=3)
        beside(axes, way, (part, found.mean), (5, 3), fontsize=6.5)
    axes.axhline(0, color=INK, linewidth=1)
    control = difference(record, model, task, CONTROL, lambda run: run.held_out)
    if control is not None:
        axes.axhline(control.mean, color=VERMILION, linewidth=1, linestyle="--")
    lined(axes)
    axes.set_xlim(0, 1.15 * max(100.0, *_ways(record, model, task).values()))
    axes.margins(y=0.15)
    axes.set_xlabel("stored activations, % of plain's")
    titled(axes, f"{task}, {model}")


def _ways(record: Record, model: str, task: str) -> dict[str, float]:
    """What each way stores, in percent of plain."""
    found = {}
    for way in record.values(Run, "way", model=model, task=task):
        times = smaller(record, model, task, way)
        if way != PLAIN and times and difference(record, model, task, way, lambda run: run.held_out):
            found[way] = 100 / times
    return found


_LEARNED = 5.0  # points above one answer for all

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


def notes(record: Record) -> Iterator[str]:
    """Line by line."""
    for facts in record.of(Facts):
        yield f"{facts.task}: {facts.what}."
    if record.of(Run):
        yield (
            "difference: from plain runs of the same seeds, which share initial weights, order of the batches and "
            "dropout, with Student's 95 % interval; of the first metric, and of the held-out loss. times smaller: what "
            "plain autograd keeps of a batch over what is kept instead, as the report says. one answer for all: the "
            "most frequent label of the sentences that were trained on; its loss is that of their frequencies."
        )
        yield from _judged(record)
    if record.of(Cell):
        yield (
            "kept: of plain what autograd keeps, otherwise what the report says is kept instead. live: after the "
            "forward, less before. peak: the most during forward and backward, less before, with gradients that are "
            "there already; with gradients: the same where the step makes them, which no way makes smaller. time: "
            "forward and backward, in turn with plain ones. Weights are random in both."
        )
    if any(True for _ in published_tables(record)):
        yield (
            f"Published: GACT, {GACT}; what it calls L1 for BERT there is 4 bits on average, which is our L2. FewBit, "
            f"{FEWBIT}, one run a row, its times of whole trainings; MNLI, {FEWBIT_PAPER}. Figures of GACT's accuracy "
            f"on GLUE were not found. Measured beside them: fine-tuned networks, and steps of {LENGTH} tokens."
        )


def _judged(record: Record) -> Iterator[str]:
    """Whether plain training learned anything, and whether losses tell the control from it."""
    for model, task in trained(record):
        plain, facts = finished(record, model, task, PLAIN), record.find(Facts, task=task)
        if not plain or facts is None:
            continue
        name = next(iter(facts.majority))
        found = sum(run.metrics[name] for run in plain) / len(plain)
        above = found - facts.majority[name]
        yield (
            f"{task}, {model}: plain training reaches {found:.1f} % {name}, {above:+.1f} points from one answer for all"
            + ("." if above > _LEARNED else ": too little for accuracies to tell ways apart; the losses may.")
        )
        control = difference(record, model, task, CONTROL, lambda run: run.held_out)
        if control is not None and control.low is not None and control.high is not None:
            apart = control.low > 0 or control.high < 0
            interval = f"{control.mean:+.3f} [{control.low:+.3f}, {control.high:+.3f}]"
            told = "tell" if apart else "do not tell"
            yield f"{task}, {model}: losses {told} runs whose gradients are zero from plain ones, {interval}" + (
                "." if apart else ": so they say nothing of the other ways."
            )


def published_tables(record: Record) -> Iterator[Table]:
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
    rows = [(one, _cell_beside(record, one) if one.way else None) for one in THROUGHPUTS]
    return table(
        rows,
        (f"GACT: training, {LENGTH} tokens", lambda row: f"{row[0].model}, {row[0].what}"),
        ("batch", lambda row: number(row[0].batch, "d")),
        ("published\nsentences/s", lambda row: f"{row[0].sentences:.2f}"),
        ("over full\nprecision", lambda row: number(row[0].plain and row[0].sentences / row[0].plain, ".2f")),
        ("measured\nway", lambda row: row[1].way if row[1] else ""),
        ("batch", lambda row: str(row[1].batch) if row[1] else ""),
        ("sentences/s", lambda row: number(row[1].throughput, ".2f") if row[1] else ""),
        ("over full\nprecision", lambda row: _speed(row[1])),
    )


def _speed(cell: Cell | None) -> str:
    return "" if cell is None or cell.ratio is None or cell.way == PLAIN else f"{1 / cell.ratio:.2f}"


def _sketches(record: Record) -> Table:
    plain = SKETCHES[0].minutes
    return table(
        SKETCHES,
        ("FewBit: CoLA by sketch", lambda sketch: sketch.way),
        ("published\nMatthews, %", lambda sketch: f"{sketch.score:.2f}"),
        ("measured\nMatthews, %", lambda sketch: _score(record, "cola", sketch.way, "matthews")),
        ("published\ntime over plain's", lambda sketch: f"{sketch.minutes / plain:.2f}"),
        ("measured\ntime over plain's", lambda sketch: _time_over_plain(record, sketch.way)),
    )


def _mnli(record: Record) -> Table:
    return table(
        MNLI.items(),
        ("FewBit: MNLI", lambda row: row[0]),
        ("published\naccuracy, %", lambda row: f"{row[1]:.1f}"),
        ("measured\naccuracy, %", lambda row: _score(record, "mnli", row[0], "accuracy")),
    )


def _cell_beside(record: Record, one: Throughput) -> Cell | None:
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


REPORT = Report("BERT on GLUE's tasks, in every way", tables, notes, draw=draw)
