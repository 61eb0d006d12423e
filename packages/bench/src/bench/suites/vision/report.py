"""The tables and the chart of ``python -m bench vision``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median

from rich.console import RenderableType
from rich.table import Table

from bench.results.charts import GREY, VERMILION, Bar, Panel, Series
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, interval, marked, mean, mib, milliseconds, number, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.vision.compression_tables import PUBLISHED, compression_tables, dense_table, published_of
from bench.suites.vision.entries import (
    FACTOR,
    FULL,
    Ablated,
    Cell,
    Comparison,
    DenseCell,
    Noise,
    StepTimes,
    Variance,
    VisionCurve,
    comparisons,
)
from bench.suites.vision.variance import WITH_GRADIENTS

RATIOS = {"L2": 6.0, "L3": 10.0}  # at least

POINTS, LOSS = 1.5, 0.03  # of accuracy, between which the interval lies; relative, at most

TRAINED = ("resnet20", "Q-layers L3")  # the model and the way that training is judged of

SEEDS = 10  # from which on training is judged

DATA = "CIFAR-10"  # on which networks are; the digits are too small to say anything

TIMES = {"L2": 1.3}  # at most


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if cells := record.of(Cell):
        yield from compression_tables(cells)
    if denses := record.of(DenseCell):
        yield dense_table(denses)
    if memories := record.measured(Memory):
        yield _memories(memories)
    if record.of(VisionCurve):
        yield _training(record)
    if variances := record.measured(Variance):
        yield _variances(record, variances)
    if record.of(Ablated):
        yield _ablation(record)
    if times := record.measured(StepTimes):
        yield _times(record, times)


def times_smaller(memory: Memory, plain: Memory) -> float | None:
    """How many times fewer bytes are kept, by the larger of what graph and allocator say; ``None``: unknown."""
    if not memory.stored_bytes or plain.original_bytes is None:
        return None
    return plain.original_bytes / (memory.stored_bytes * max(1.0, memory.agreement(plain) or 1.0))


def _memories(memories: Sequence[Memory]) -> Table:
    plain = memories[0]

    def is_plain(memory: Memory) -> bool:
        return memory.stored_bytes is None

    def allocated(memory: Memory) -> str:
        agreement = memory.agreement(plain)
        if memory.stored_bytes is None:
            return mib(memory.live_bytes, 2)
        return "" if agreement is None else mib(agreement * memory.stored_bytes, 2)

    def agreement(memory: Memory) -> RenderableType:
        found = None if is_plain(memory) else memory.agreement(plain)
        return "" if found is None else marked(f"{found:.3f}", abs(found - 1) <= AGREEMENT)

    def smaller(memory: Memory) -> RenderableType:
        return bounded(times_smaller(memory, plain), ".1f", least=RATIOS.get(memory.level))

    return table(
        memories,
        ("memory", lambda memory: "torch's layers" if is_plain(memory) else memory.level),
        ("graph\nMiB", lambda memory: mib(memory.original_bytes if is_plain(memory) else memory.stored_bytes, 2)),
        ("allocator\nMiB", allocated),
        ("allocator /\ngraph", agreement),
        ("times\nsmaller", smaller),
        ("peak\nMiB", lambda memory: mib(memory.peak_bytes)),
    )


def _training(record: Record) -> Table:
    def difference(row: Comparison) -> RenderableType:
        reached = row.difference.meets(POINTS) if enough(record, row) else None
        return "" if row.level == FULL else marked(interval(row.difference, 2), reached)

    def loss(row: Comparison) -> RenderableType:
        reached = abs(row.loss_ratio - 1) <= LOSS if enough(record, row) else None
        return "" if row.level == FULL else marked(f"{row.loss_ratio:.3f}", reached)

    return table(
        comparisons(record),
        ("training", lambda row: "  full precision" if row.level == FULL else f"  {row.level}"),
        ("seeds", lambda row: str(len(row.accuracies))),
        ("accuracy, %", lambda row: mean(row.accuracies, 1)),
        ("difference, points", difference),
        ("final loss", lambda row: f"{fmean(row.losses):.3f}"),
        ("\nrelative", loss),
        ("images/s", lambda row: number(row.images_per_second, ",.1f")),
        ("\nrelative", lambda row: "" if row.level == FULL else number(row.speed, ".2f")),
        above=lambda row: row.model,
    )


def _bias(noise: Noise) -> str:
    return f"{noise.bias / noise.gradient:.2g}"


def _variances(record: Record, variances: Sequence[Variance]) -> Table:
    def within(variance: Variance) -> RenderableType:
        held, count = inside(variance), len(variance.ratios)
        return marked(f"{held} of {count}", held == count if judged(record) else None)

    return table(
        variances,
        ("variance", lambda variance: variance.name),
        ("layers", lambda variance: str(len(variance.ratios))),
        ("share", lambda variance: f"{variance.share:.3g}"),
        ("bias", _bias),
        ("predicted /\nmeasured, least", lambda variance: f"{min(variance.ratios):.2f}"),
        ("\nmedian", lambda variance: f"{median(variance.ratios):.2f}"),
        ("\nmost", lambda variance: f"{max(variance.ratios):.2f}"),
        ("within\nthe factor", within),
    )


def _ablation(record: Record) -> Table:
    rows = list(zip(record.of(Ablated), below(record), strict=True))

    def beside(place: int) -> Column[tuple[Ablated, bool | None]]:
        def figure(row: tuple[Ablated, bool | None]) -> str:
            figures = PUBLISHED["ablation"].get(row[0].name, ())
            return f"{figures[place]:g}" if figures else ""

        return ("published:\nCIFAR-10", "\nCIFAR-100")[place], figure

    return table(
        rows,
        ("ablation, 2 bits", lambda row: row[0].name),
        ("share", lambda row: marked(f"{row[0].share:.3g}", row[1])),
        ("bias", lambda row: _bias(row[0])),
        beside(0),
        beside(1),
    )


def _times(record: Record, found: Sequence[StepTimes]) -> Table:
    def column(level: str) -> Column[StepTimes]:
        def cell(times: StepTimes) -> RenderableType:
            return bounded(times.ratio(level), ".2f", most=TIMES.get(level) if judged(record) else None)

        return level, cell

    return table(
        found,
        ("time", lambda times: times.order),
        ("torch's\nlayers, ms", lambda times: milliseconds(times.plain_seconds, 0)),
        *map(column, found[0].seconds),
    )


def judged(record: Record) -> bool:
    """Whether the images are those that something was asked of."""
    return str(record.settings.get("data", "")).startswith(DATA)


def enough(record: Record, comparison: Comparison) -> bool:
    """Whether a level's training is judged."""
    asked = (comparison.model, comparison.level) == TRAINED
    return judged(record) and asked and len(comparison.accuracies) >= SEEDS


def inside(variance: Noise) -> int:
    """Of how many layers the prediction is within ``FACTOR``."""
    return sum(1 / FACTOR <= ratio <= FACTOR for ratio in variance.ratios)


def below(record: Record) -> list[bool | None]:
    """Of each step of the ablation, whether it has less variance than the one before; ``None``: nothing is asked."""
    steps = record.of(Ablated)
    asked = [judged(record) and step.name != WITH_GRADIENTS for step in steps[1:]]
    pairs = zip(asked, pairwise(steps), strict=True)
    return [None, *(later.share < earlier.share if one else None for one, (earlier, later) in pairs)]


def notes(record: Record) -> Iterator[str]:
    """What was published, of the ways that were measured."""
    sources = dict.fromkeys(one["source"] for cell in record.of(Cell) for one in published_of(cell))
    if sources:
        yield f"published: {'; '.join(sources)}."
    if record.of(DenseCell):
        yield f"published, in percent, after training: {PUBLISHED['sources']['trained']}; not measured here."
    if record.of(Ablated):
        yield f"published: the gradient's variance, which is no share of anything: {PUBLISHED['sources']['ablation']}."


def panels(record: Record) -> list[Panel]:
    """The variance of each layer's gradient, predicted and measured, at each level; and the layers' bits."""
    found = []
    for variance in record.measured(Variance):
        layers = [layer for layer in variance.layers if layer.gradient and layer.measured]
        names, places = [layer.name for layer in layers], range(len(layers))
        predicted = Series([layer.predicted / layer.gradient for layer in layers], places, "predicted")
        measured = Series([layer.measured / layer.gradient for layer in layers], places, "measured", VERMILION, "x")
        title = f"{variance.name}: {variance.share:.3g} of the whole gradient's square"
        found.append(Panel(title, "variance / squared gradient", rows=names, series=[predicted, measured], log="x"))
        found.append(Panel(variance.name, "bits", bars=[Bar(layer.name, layer.bits, GREY) for layer in layers]))
    return found


def _caption(record: Record) -> str:
    recipe = record.settings["recipe"]
    return (
        f"ResNet-20 after {recipe['steps before variances']:g} steps, batch {recipe['batch of variances']:g}, "
        f"{record.measured(Variance)[0].repeats} repeats."
    )


REPORT = Report("Networks for images", tables, notes, panels=panels, caption=_caption)
