"""Results of ``python -m bench fewbit`` as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from statistics import fmean, median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.fewbit.notes import (
    LOSS,
    NATS,
    SAVINGS,
    TIME,
    judged_memory,
    judged_time,
    judged_training,
    learned,
    least_of,
    notes,
)
from bench.fewbit.published import ROWS
from bench.fewbit.results import Comparison, FewBitResults, GridCell, Peak
from bench.fewbit.roberta import WAYS
from bench.fewbit.training import EXACT
from bench.layout import columns, header
from bench.marks import marked
from bench.statistics import spread
from bench.units import MIB


def render(results: FewBitResults) -> RenderableType:
    """Header, tables and notes."""
    top = header("Few-bit activations and randomized linear layers", results.machine, results.seconds)
    return Group(top, *_tables(results), notes(results))


def _tables(results: FewBitResults) -> Iterator[Table]:
    if any(peak.raw_bytes for peak in results.peaks):
        yield _memory(results)
    if results.grid:
        yield _grid(results)
    if results.runs:
        yield _training(results)
    for what, heading in (("activation", "activation"), ("linear", "randomized linear")):
        if any(times.what == what for times in results.times):
            yield _times(results, what, heading)


def _memory(results: FewBitResults) -> Table:
    table = columns(
        "memory",
        "kept\nMiB",
        "activation\npeak, MiB",
        "\nsaving, %",
        "with gradients\nMiB",
        "\nsaving, %",
        "raw\nMiB",
        "\nsaving, %",
        "published\nGiB",
        "\nsaving, %",
    )
    plain = results.peaks[0]
    for peak in results.peaks:
        least = SAVINGS.get(peak.way) if judged_memory(results) else None
        pairs = (
            (peak.activation_bytes, plain.activation_bytes, least),
            (median(peak.peak_bytes), median(plain.peak_bytes), least),
            (median(peak.raw_bytes), median(plain.raw_bytes), least),
        )
        row: list[RenderableType] = [f"{median(peak.kept_bytes) / MIB:,.1f}"]
        for nbytes, reference, asked in pairs:
            saving = 1 - nbytes / reference
            reached = None if asked is None else saving >= asked
            row += [f"{nbytes / MIB:,.1f}", "" if peak is plain else marked(f"{100 * saving:.1f}", reached)]
        way = WAYS.get(peak.way)
        table.add_row(peak.way, *row, *([] if way is None else _published(way.bits, way.ratio)))
    return table


def _grid(results: FewBitResults) -> Table:
    table = columns(
        "grid: GELU",
        "linear layers",
        "kept\nMiB",
        "activation\npeak, MiB",
        "\nsaving, %",
        "raw\nMiB",
        "\nsaving, %",
        "published\nGiB",
        "\nsaving, %",
        labels=2,
    )
    for (network, batch), found in groupby(results.grid, key=lambda cell: (cell.network, cell.batch)):
        cells = list(found)
        table.add_row(Text(f"{network.partition(' of ')[0]}, batch {batch}", style="bold"))
        exact = next((cell.peak for cell in cells if cell.bits is None and cell.ratio is None), None)
        for cell in cells:
            names = [
                "exact" if cell.bits is None else f"{cell.bits} bit{'s' * (cell.bits > 1)}",
                "exact" if cell.ratio is None else f"{cell.ratio:.0%} of the rows",
            ]
            table.add_row(*names, *_cell(cell, exact), *_published(cell.bits, cell.ratio))
    return table


def _cell(cell: GridCell, exact: Peak | None) -> list[RenderableType]:
    if cell.peak is None:
        return [Text("failed", style="dim"), "", "", "", ""]
    row: list[RenderableType] = [f"{median(cell.peak.kept_bytes) / MIB:,.1f}"]
    least = least_of(cell)
    for nbytes, reference, asked in (
        (cell.peak.activation_bytes, None if exact is None else exact.activation_bytes, least),
        (median(cell.peak.raw_bytes), None if exact is None else median(exact.raw_bytes), None),
    ):
        saving = None if reference is None or cell.peak is exact else 1 - nbytes / reference
        reached = None if asked is None or saving is None else saving >= asked
        row += [f"{nbytes / MIB:,.1f}", "" if saving is None else marked(f"{100 * saving:.1f}", reached)]
    return row


def _published(bits: int | None, ratio: float | None) -> list[str]:
    row = ROWS.get((bits, ratio))
    return ["", ""] if row is None else [f"{row.gib:.2f}", f"{100 * row.saving:.1f}" if row.saving else ""]


def _training(results: FewBitResults) -> Table:
    table = columns("training", "seeds", "exact", "this", "difference", "relative")
    kinds = {run.kind: None for run in results.runs if run.kind != EXACT}
    for kind in kinds:
        for name, row in (("held-out", results.held_out(kind)), ("training", results.training_loss(kind))):
            judged = name == "held-out" and judged_training(results, kind)
            table.add_row(
                f"{kind}: {name} loss",
                str(row.seeds),
                marked(_mean(row.exact), learned(results) >= NATS if judged else None),
                _mean(row.other),
                _interval(row),
                marked(f"{row.ratio:.4f}", abs(row.ratio - 1) <= LOSS if judged else None),
            )
    return table


def _mean(values: list[float]) -> str:
    deviation = spread(values)
    return f"{fmean(values):.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def _interval(row: Comparison) -> str:
    difference = row.difference
    if difference.low is None:
        return f"{difference.mean:+.4f}"
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"


def _times(results: FewBitResults, what: str, heading: str) -> Table:
    table = columns(heading, "torch's\nms", "ours\nms", "ratio")
    for times in results.times:
        if times.what == what:
            table.add_row(
                times.name,
                f"{1e3 * median(times.plain_seconds):.1f}",
                f"{1e3 * median(times.seconds):.1f}",
                marked(f"{times.ratio:.2f}", times.ratio <= TIME if judged_time(results, times) else None),
            )
    return table
