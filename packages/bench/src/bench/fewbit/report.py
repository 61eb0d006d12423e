"""What is printed of ``python -m bench fewbit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import RenderableType
from rich.table import Table

from bench.fewbit.chart import draw
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
    targets,
)
from bench.fewbit.published import ROWS
from bench.fewbit.results import EXACT, BertRun, Comparison, GridCell, Peak, Sized, Times, held_out, training_loss
from bench.fewbit.roberta import WAYS, Way
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import dim, interval, marked, mean, mib, milliseconds, table

TITLES = {"activation": "activation", "linear": "randomized linear"}


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if peaks := [peak for peak in record.of(Peak) if peak.raw_bytes]:
        yield _memory(peaks)
    if cells := record.of(GridCell):
        yield _grid(cells)
    if record.of(BertRun):
        yield _training(record)
    for what, heading in TITLES.items():
        if times := [one for one in record.of(Times, what=what) if one.seconds]:
            yield _times(record, times, heading)


def _memory(peaks: Sequence[Peak]) -> Table:
    plain = {(peak.network, peak.batch): peak for peak in peaks if peak.way == "vanilla"}
    several = len({(peak.network, peak.batch) for peak in peaks}) > 1

    def saving(peak: Peak, bytes_of: str) -> RenderableType:
        least = SAVINGS.get(peak.way) if judged_memory(peak) else None
        return _saving(peak, plain.get((peak.network, peak.batch)), bytes_of, least)

    return table(
        peaks,
        ("memory", lambda peak: peak.way),
        ("kept\nMiB", lambda peak: mib(median(peak.kept_bytes))),
        ("activation\npeak, MiB", lambda peak: mib(peak.activation_bytes)),
        ("\nsaving, %", lambda peak: saving(peak, "activation_bytes")),
        ("with gradients\nMiB", lambda peak: mib(median(peak.peak_bytes))),
        ("\nsaving, %", lambda peak: saving(peak, "peak_bytes")),
        ("raw\nMiB", lambda peak: mib(median(peak.raw_bytes))),
        ("\nsaving, %", lambda peak: saving(peak, "raw_bytes")),
        ("published\nGiB", lambda peak: _published_gib(WAYS[peak.way])),
        ("\nsaving, %", lambda peak: _published_saving(WAYS[peak.way])),
        above=(lambda peak: f"{peak.network}, batch {peak.batch}") if several else None,
    )


def _grid(cells: Sequence[GridCell]) -> Table:
    exact = {(cell.network, cell.batch): cell for cell in cells if cell.bits is None and cell.ratio is None}

    def saving(cell: GridCell, bytes_of: str, least: float | None) -> RenderableType:
        return _saving(cell, exact.get((cell.network, cell.batch)), bytes_of, least)

    return table(
        cells,
        ("grid: GELU", lambda cell: "exact" if cell.bits is None else f"{cell.bits} bit{'s' * (cell.bits > 1)}"),
        ("linear layers", lambda cell: "exact" if cell.ratio is None else f"{cell.ratio:.0%} of the rows"),
        ("kept\nMiB", lambda cell: mib(median(cell.kept_bytes))),
        ("activation\npeak, MiB", lambda cell: mib(cell.activation_bytes)),
        ("\nsaving, %", lambda cell: saving(cell, "activation_bytes", least_of(cell))),
        ("raw\nMiB", lambda cell: mib(median(cell.raw_bytes))),
        ("\nsaving, %", lambda cell: saving(cell, "raw_bytes", None)),
        ("published\nGiB", lambda cell: _published_gib(Way(cell.bits, cell.ratio))),
        ("\nsaving, %", lambda cell: _published_saving(Way(cell.bits, cell.ratio))),
        labels=2,
        above=lambda cell: f"{cell.network.partition(' of ')[0]}, batch {cell.batch}",
        instead=_not_measured,
    )


def _not_measured(cell: GridCell) -> list[RenderableType] | None:
    if cell.raw_bytes:
        return None
    way = Way(cell.bits, cell.ratio)
    return [dim(cell.outcome or "not measured"), *[""] * 4, _published_gib(way), _published_saving(way)]


def _saving(entry: Sized, plain: Sized | None, bytes_of: str, least: float | None) -> RenderableType:
    """The part of the exact network's bytes that are saved, with a sign if something was asked."""
    if plain is None or entry is plain or not plain.raw_bytes:
        return ""
    saving = 1 - _bytes(entry, bytes_of) / _bytes(plain, bytes_of)
    return marked(f"{100 * saving:.1f}", None if least is None else saving >= least)


def _bytes(entry: Sized, name: str) -> float:
    found = getattr(entry, name)
    return float(median(found) if isinstance(found, list) else found)


def _published_gib(way: Way) -> str:
    row = ROWS.get((way.bits, way.ratio))
    return "" if row is None else f"{row.gib:.2f}"


def _published_saving(way: Way) -> str:
    row = ROWS.get((way.bits, way.ratio))
    return "" if row is None or not row.saving else f"{100 * row.saving:.1f}"


def _training(record: Record) -> Table:
    kinds = [kind for kind in record.values(BertRun, "kind") if kind != EXACT]
    rows = [
        (kind, name, found)
        for kind in kinds
        for name, found in (("held-out", held_out(record, kind)), ("training", training_loss(record, kind)))
    ]

    def judged(row: tuple[str, str, Comparison]) -> bool:
        return row[1] == "held-out" and judged_training(record, row[0])

    return table(
        rows,
        ("training", lambda row: f"{row[0]}: {row[1]} loss"),
        ("seeds", lambda row: str(row[2].seeds)),
        ("exact", lambda row: marked(mean(row[2].exact, 3), learned(record) >= NATS if judged(row) else None)),
        ("this", lambda row: mean(row[2].other, 3)),
        ("difference", lambda row: interval(row[2].difference, 4)),
        ("relative", lambda row: marked(f"{row[2].ratio:.4f}", abs(row[2].ratio - 1) <= LOSS if judged(row) else None)),
    )


def _times(record: Record, found: Sequence[Times], heading: str) -> Table:
    return table(
        found,
        (heading, lambda one: one.name),
        ("torch's\nms", lambda one: milliseconds(one.plain_seconds)),
        ("ours\nms", lambda one: milliseconds(one.seconds)),
        ("ratio", lambda one: marked(f"{one.ratio:.2f}", one.ratio <= TIME if judged_time(record, one) else None)),
    )


REPORT = Report("Few-bit activations and randomized linear layers", tables, notes, targets, draw=draw)
