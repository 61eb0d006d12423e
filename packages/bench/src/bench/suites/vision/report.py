"""What is printed of ``python -m bench vision``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median

from rich.console import RenderableType
from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report, notes_of_missing
from bench.results.tables import Column, bounded, interval, marked, mean, mib, milliseconds, number, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.vision.chart import draw
from bench.suites.vision.compression.results import Cell
from bench.suites.vision.dense.results import DenseCell
from bench.suites.vision.memory_report import (
    compression_notes,
    compression_tables,
    compression_targets,
    dense_notes,
    dense_table,
)
from bench.suites.vision.published import ABLATION, ABLATION_SOURCE
from bench.suites.vision.results import (
    FACTOR,
    FULL,
    Ablated,
    Comparison,
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

    def published(place: int) -> Column[tuple[Ablated, bool | None]]:
        def figure(row: tuple[Ablated, bool | None]) -> str:
            figures = ABLATION.get(row[0].name, ())
            return f"{figures[place]:g}" if figures else ""

        return ("published:\nCIFAR-10", "\nCIFAR-100")[place], figure

    return table(
        rows,
        ("ablation, 2 bits", lambda row: row[0].name),
        ("share", lambda row: marked(f"{row[0].share:.3g}", row[1])),
        ("bias", lambda row: _bias(row[0])),
        published(0),
        published(1),
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
    """A paragraph a part that was run."""
    settings = record.settings
    if settings.get("data"):
        yield f"Data: {settings['data']}."
    if settings.get("recipe"):
        yield f"Recipe: {', '.join(f'{name} {value:g}' for name, value in settings['recipe'].items())}."
    if settings["device"] != "cpu":
        yield (
            f"{record.machine.processor} is what compression and training on a folder are of; all else is of the CPU."
        )
    if cells := record.of(Cell):
        yield from compression_notes(cells)
    if denses := record.of(DenseCell):
        yield from dense_notes(denses)
    if memories := record.of(Memory):
        yield (
            "memory: ResNet-50, batch 16 at 64 x 64, float32. graph: bytes that autograd keeps, without parameters, "
            "buffers and the batch. allocator: live bytes of the process after a forward, less what lives beside the "
            "untouched model's saved tensors, too. times smaller: what the untouched model saves over the larger of "
            "the two. peak: the most during forward and backward, less what was there before and the gradients."
        )
        yield from notes_of_missing(memories)
        yield from sorted({f"memory failed: {one.failure}." for one in memories if one.failure})
    if curves := record.of(VisionCurve):
        yield (
            "training: runs of a seed share initial weights and batches. accuracy: of the test images after the last "
            "epoch, top-1, mean and standard deviation; difference: from full precision with the same seed, with "
            "Student's 95 % interval. final loss: training loss of the last epoch, over full precision's with the same "
            "seed, the mean. images/s: of training without the test, and over full precision's."
        )
        for curve in curves:
            if curve.failure:
                yield f"{curve.model}, {curve.level}, seed {curve.seed}: failed: {curve.failure}."
    some: list[Noise] = [*record.of(Variance), *record.of(Ablated)]
    if some:
        yield (
            f"variance: of the gradient of one batch, {some[0].repeats} repeats, of a ResNet-20 that was trained "
            "a little. share: of the whole gradient's squared norm; bias: the same, of its mean's squared distance "
            "from the exact gradient. predicted / measured: of each layer by itself."
        )
    if record.of(Ablated):
        yield f"published: the gradient's variance, which is no share of anything: {ABLATION_SOURCE}."
    if any(step.name == WITH_GRADIENTS for step in record.of(Ablated)):
        yield f"{WITH_GRADIENTS}: the table has seen these very samples twice."
    if times := record.of(StepTimes):
        first = times[0]
        yield (
            f"time: forward and backward of ResNet-20, no optimizer, batch {first.batch}, over torch's own layers, in "
            f"turn; median of the ratios of {len(first.plain_seconds)} rounds."
        )


def targets(record: Record) -> Iterator[str]:
    """What was asked of the parts that were run."""
    yield from compression_targets(record.of(Cell))
    if record.of(Memory):
        ratios = ", ".join(f"{level} {least:g}" for level, least in RATIOS.items())
        yield f"times smaller at least {ratios}; the allocator's bytes those of the graph within {AGREEMENT:.0%}"
    if not judged(record):
        return
    if record.of(VisionCurve):
        yield (
            f"the interval lies within ±{POINTS:g} points, ? (undecided) if only a part of it does; final loss within "
            f"{LOSS:.0%} (judged from {SEEDS} seeds on)"
        )
    if record.of(Variance):
        yield f"predicted within a factor of {FACTOR:g} of measured, every layer"
    if record.of(Ablated):
        yield "each of ActNN's steps below the one before"
    if record.of(StepTimes):
        yield f"step time at most {', '.join(f'{level} {most:g}' for level, most in TIMES.items())}"


REPORT = Report("Networks for images", tables, notes, targets, draw=draw)
