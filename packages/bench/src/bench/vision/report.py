"""What is printed of ``python -m bench vision``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from rich.console import RenderableType
from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, interval, marked, mean, mib, milliseconds, number, table
from bench.runner.memory import AGREEMENT, Memory
from bench.vision.chart import draw
from bench.vision.compression import report as compression
from bench.vision.compression.results import Cell
from bench.vision.dense import report as dense
from bench.vision.dense.results import DenseCell
from bench.vision.notes import LOSS, POINTS, RATIOS, TIMES, below, enough, inside, judged, notes, targets
from bench.vision.published import ABLATION
from bench.vision.results import FULL, Ablated, Comparison, Noise, StepTimes, Variance, VisionCurve, comparisons


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if cells := record.of(Cell):
        yield from compression.tables(cells)
    if denses := record.of(DenseCell):
        yield dense.table_of(denses)
    if memories := [memory for memory in record.of(Memory) if not memory.failure]:
        yield _memories(memories)
    if record.of(VisionCurve):
        yield _training(record)
    if variances := [one for one in record.of(Variance) if not one.failure]:
        yield _variances(record, variances)
    if record.of(Ablated):
        yield _ablation(record)
    if times := [one for one in record.of(StepTimes) if not one.failure]:
        yield _times(record, times)


def ratio_of(memory: Memory, plain: Memory) -> float | None:
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
        ratio, least = ratio_of(memory, plain), RATIOS.get(memory.level)
        return "" if ratio is None else marked(f"{ratio:.1f}", None if least is None else ratio >= least)

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
            most, ratio = TIMES.get(level), times.ratio(level)
            return marked(f"{ratio:.2f}", None if most is None or not judged(record) else ratio <= most)

        return level, cell

    return table(
        found,
        ("time", lambda times: times.order),
        ("torch's\nlayers, ms", lambda times: milliseconds(times.plain_seconds, 0)),
        *map(column, found[0].seconds),
    )


REPORT = Report("Networks for images", tables, notes, targets, draw=draw)
