"""The tables and the chart of ``python -m bench fewbit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType

from rich.console import RenderableType
from rich.table import Table

from bench.results.charts import BLUE, GREY, VERMILION, Bar, Panel, Series
from bench.results.published import published
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import bounded, dim, interval, marked, mean, mib, milliseconds, table
from bench.suites.fewbit.cell import ELEMENTS, grid_network
from bench.suites.fewbit.entries import (
    CONTROL,
    EXACT,
    BertRun,
    Comparison,
    GridCell,
    Peak,
    Sized,
    Times,
    held_out,
    training_loss,
)
from bench.suites.fewbit.training import KINDS, SEEDS, STRIDE
from bench.units import MIB
from bench.ways.roberta import WAYS, Exchange, Shape


def _peaks(record: Record) -> list[Peak]:
    """Of the first network that was measured."""
    found = [peak for peak in record.of(Peak) if peak.raw_bytes]
    return [peak for peak in found if (peak.network, peak.batch) == (found[0].network, found[0].batch)]


TITLES = {"activation": "activation", "linear": "randomized linear"}

ROWS = {(row["bits"], row["ratio"]): row for row in published("fewbit")["rows"]}
"""FewBit's table, by the bits of GELU and the part of the rows that linear layers keep; ``None`` is exact."""

SAVINGS: Mapping[str, float] = MappingProxyType(
    {name: ROWS[way.bits, way.ratio]["saving"] for name, way in WAYS.items()}
)
"""What FewBit's table has, of the peak."""

LOSS = 0.01  # relative, at most

NATS = 1.0  # that the exact run learns at least

TIME = 1.0  # over torch's, of GELU

JUDGED = "gelu"


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
        ("published\nGiB", lambda peak: _published(WAYS[peak.way])[0]),
        ("\nsaving, %", lambda peak: _published(WAYS[peak.way])[1]),
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
        ("\nsaving, %", lambda cell: saving(cell, "activation_bytes", least_saving(cell))),
        ("raw\nMiB", lambda cell: mib(median(cell.raw_bytes))),
        ("\nsaving, %", lambda cell: saving(cell, "raw_bytes", None)),
        ("published\nGiB", lambda cell: _published(Exchange(cell.bits, cell.ratio))[0]),
        ("\nsaving, %", lambda cell: _published(Exchange(cell.bits, cell.ratio))[1]),
        labels=2,
        above=lambda cell: f"{cell.network.partition(' of ')[0]}, batch {cell.batch}",
        instead=_not_measured,
    )


def _not_measured(cell: GridCell) -> list[RenderableType] | None:
    if cell.raw_bytes:
        return None
    published = _published(Exchange(cell.bits, cell.ratio))
    return [dim(cell.outcome or "not measured"), *[""] * 4, *published]


def _saving(entry: Sized, plain: Sized | None, bytes_of: str, least: float | None) -> RenderableType:
    """The part of the exact network's bytes that are saved, with a sign if something was asked."""
    if plain is None or entry is plain or not plain.raw_bytes:
        return ""
    saving = 1 - _bytes(entry, bytes_of) / _bytes(plain, bytes_of)
    return marked(f"{100 * saving:.1f}", None if least is None else saving >= least)


def _bytes(entry: Sized, name: str) -> float:
    found = getattr(entry, name)
    return float(median(found) if isinstance(found, list) else found)


def _published(way: Exchange) -> tuple[str, str]:
    """GiB and saving of a way in FewBit's table; empty where it has none."""
    row = ROWS.get((way.bits, way.ratio))
    if row is None:
        return "", ""
    return f"{row['gib']:.2f}", f"{100 * row['saving']:.1f}" if row["saving"] else ""


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
        ("ratio", lambda one: bounded(one.ratio, ".2f", most=TIME if judged_time(record, one) else None)),
    )


def judged_memory(peak: Peak) -> bool:
    """Whether the network is the one that something was asked of."""
    return str(Shape()) in peak.network


def least_saving(cell: GridCell) -> float | None:
    """The saving that is asked of a cell of the grid: what FewBit's table has; ``None``: nothing is."""
    row = ROWS.get((cell.bits, cell.ratio))
    judged = row is not None and row["saving"] and cell.network == grid_network(Shape())
    return row["saving"] if row is not None and judged else None


def judged_training(record: Record, kind: str) -> bool:
    """Whether there are as many runs as were asked for, of a kind that something was asked of; the control is judged
    with one, and must miss it."""
    return held_out(record, kind).seeds >= (1 if kind == CONTROL and held_out(record).seeds >= SEEDS else SEEDS)


def learned(record: Record) -> float:
    """By how many nats the exact loss of the words held out is below their entropy, the mean over seeds."""
    return float(record.settings["entropy"]) - fmean(held_out(record).exact)


def judged_time(record: Record, times: Times) -> bool:
    """Whether something was asked of it."""
    return record.settings["device"] == "cpu" and times.name == JUDGED and times.elements >= ELEMENTS


def notes(record: Record) -> Iterator[str]:
    """Where the published numbers are from."""
    if any(isinstance(entry, Peak | GridCell) for entry in record.entries):
        yield f"published: {published('fewbit')['source']}."


def panels(record: Record) -> list[Panel]:
    """One for each part that was run."""
    found = []
    if peaks := [peak for peak in record.of(Peak) if peak.raw_bytes]:
        first = [peak for peak in peaks if (peak.network, peak.batch) == (peaks[0].network, peaks[0].batch)]
        plain = first[0].activation_bytes / MIB
        bars = [Bar(peak.way, peak.activation_bytes / MIB, whole=plain) for peak in first]
        found.append(Panel("Activation peak of RoBERTa", f"MiB, batch {first[0].batch}", bars=bars))
    lines = []
    for kind, color in zip(KINDS, (GREY, BLUE, VERMILION), strict=True):
        if curves := [run.losses for run in record.of(BertRun) if run.kind == kind and run.losses]:
            means = [fmean(values) for values in zip(*curves, strict=True)]
            lines.append(Series([STRIDE * place for place in range(1, len(means) + 1)], means, kind, color, "-"))
    if lines:
        title, entropy = f"Training loss, nats, mean of {held_out(record).seeds}", record.settings["entropy"]
        found.append(Panel(title, "steps; line: entropy of the held-out words", series=lines, line=entropy))
    if times := [one for one in record.of(Times) if one.seconds]:
        names = [one.name if one.what == "activation" else f"linear, {one.name}" for one in times]
        bars = [Bar(name, one.ratio) for name, one in zip(names, times, strict=True)]
        found.append(Panel("Time", "forward + backward over torch's", bars=bars, line=1))
    return found


REPORT = Report("Few-bit activations and randomized linear layers", tables, notes, panels=panels)
