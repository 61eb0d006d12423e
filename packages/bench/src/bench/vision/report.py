"""Results of ``python -m bench vision`` as text."""

from __future__ import annotations

from statistics import fmean, median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.layout import columns, header
from bench.marks import marked
from bench.memory import AGREEMENT, Memory
from bench.statistics import spread
from bench.units import MIB
from bench.vision.compression import report as compression
from bench.vision.dense import report as dense
from bench.vision.notes import LOSS, POINTS, RATIOS, TIMES, below, enough, inside, judged, notes
from bench.vision.published import ABLATION
from bench.vision.results import Comparison, StepTimes, Variance, VisionResults


def render(results: VisionResults) -> RenderableType:
    """Header, tables and notes."""
    tables = (
        (results.memories, _memories),
        (results.curves, _training),
        (results.variances, _variances),
        (results.ablation, _ablation),
        (results.times, _times),
    )
    top = header("Networks for images", results.machine, results.seconds)
    parts = [table(results) for found, table in tables if found]
    if results.dense:
        parts = [dense.table(results.dense), *parts]
    if results.compressions:
        parts = [*compression.tables(results.compressions), *parts]
    return Group(top, *parts, notes(results))


def ratio_of(memory: Memory, plain: Memory) -> float | None:
    """How many times fewer bytes are kept, by the larger of what graph and allocator say; ``None``: unknown."""
    if not memory.stored_bytes or plain.original_bytes is None:
        return None
    return plain.original_bytes / (memory.stored_bytes * max(1.0, memory.agreement(plain) or 1.0))


def _memories(results: VisionResults) -> Table:
    table = columns("memory", "graph\nMiB", "allocator\nMiB", "allocator /\ngraph", "times\nsmaller", "peak\nMiB")
    plain = results.memories[0]
    for memory in results.memories:
        peak = "" if memory.peak_bytes is None else f"{memory.peak_bytes / MIB:,.1f}"
        if memory.stored_bytes is None:
            live = "" if memory.live_bytes is None else f"{memory.live_bytes / MIB:,.2f}"
            kept = "" if memory.original_bytes is None else f"{memory.original_bytes / MIB:,.2f}"
            table.add_row("torch's layers", kept, live, "", "", peak)
            continue
        agreement, ratio = memory.agreement(plain), ratio_of(memory, plain)
        least = RATIOS.get(memory.level)
        table.add_row(
            memory.level,
            f"{memory.stored_bytes / MIB:,.2f}",
            "" if agreement is None else f"{agreement * memory.stored_bytes / MIB:,.2f}",
            "" if agreement is None else marked(f"{agreement:.3f}", abs(agreement - 1) <= AGREEMENT),
            "" if ratio is None else marked(f"{ratio:.1f}", None if least is None else ratio >= least),
            peak,
        )
    return table


def _training(results: VisionResults) -> Table:
    table = columns(
        "training", "seeds", "accuracy, %", "difference, points", "final loss", "\nrelative", "images/s", "\nrelative"
    )
    above = ""
    for row in results.comparisons():
        if row.model != above:
            above = row.model
            table.add_row(Text(above, style="bold"))
        deviation = spread(row.accuracies)
        table.add_row(
            "  full precision" if row.level == "L0" else f"  {row.level}",
            str(len(row.accuracies)),
            f"{fmean(row.accuracies):.1f}" + ("" if deviation is None else f" ± {deviation:.1f}"),
            ""
            if row.level == "L0"
            else marked(_interval(row), row.difference.meets(POINTS) if enough(results, row) else None),
            f"{fmean(row.losses):.3f}",
            ""
            if row.level == "L0"
            else marked(f"{row.loss_ratio:.3f}", abs(row.loss_ratio - 1) <= LOSS if enough(results, row) else None),
            "" if row.images_per_second is None else f"{row.images_per_second:,.1f}",
            "" if row.speed is None or row.level == "L0" else f"{row.speed:.2f}",
        )
    return table


def _interval(row: Comparison) -> str:
    difference = row.difference
    if difference.low is None:
        return f"{difference.mean:+.2f}"
    return f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def _shares(variance: Variance) -> tuple[str, str]:
    return f"{variance.share:.3g}", f"{variance.found.bias / variance.found.gradient:.2g}"


def _variances(results: VisionResults) -> Table:
    table = columns(
        "variance",
        "layers",
        "share",
        "bias",
        "predicted /\nmeasured, least",
        "\nmedian",
        "\nmost",
        "within\nthe factor",
    )
    for variance in results.variances:
        ratios = variance.ratios
        held = inside(variance)
        table.add_row(
            variance.name,
            str(len(ratios)),
            *_shares(variance),
            f"{min(ratios):.2f}",
            f"{median(ratios):.2f}",
            f"{max(ratios):.2f}",
            marked(f"{held} of {len(ratios)}", held == len(ratios) if judged(results) else None),
        )
    return table


def _ablation(results: VisionResults) -> Table:
    table = columns("ablation, 2 bits", "share", "bias", "published:\nCIFAR-10", "\nCIFAR-100")
    for step, reached in zip(results.ablation, below(results), strict=True):
        share, bias = _shares(step)
        published = [f"{value:g}" for value in ABLATION.get(step.name, ())]
        table.add_row(step.name, marked(share, reached), bias, *published)
    return table


def _times(results: VisionResults) -> Table:
    levels = list(results.times[0].seconds)
    table = columns("time", "torch's\nlayers, ms", *levels)
    for times in results.times:
        table.add_row(
            times.order,
            f"{1e3 * median(times.plain_seconds):,.0f}",
            *(
                marked(f"{times.ratio(level):.2f}", _fast(times, level) if judged(results) else None)
                for level in levels
            ),
        )
    return table


def _fast(times: StepTimes, level: str) -> bool | None:
    most = TIMES.get(level)
    return None if most is None else times.ratio(level) <= most
