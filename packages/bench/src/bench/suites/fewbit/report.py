"""The tables and the chart of ``python -m bench fewbit``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table

from bench.errors import BenchError
from bench.results.charts import BLUE, FAINT, GREY, INK, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report, notes_of_missing
from bench.results.tables import bounded, dim, interval, marked, mean, mib, milliseconds, table
from bench.suites.fewbit.cell import ELEMENTS, FEATURES, grid_network
from bench.suites.fewbit.entries import (
    COMPRESSED,
    CONTROL,
    EXACT,
    FEW_BITS,
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
from bench.ways.roberta import ATTENTION, BITS, DROPOUT, RATIO, WAYS, Exchange, Shape


def draw(record: Record) -> Figure:
    """A panel for each part.

    Raises:
        BenchError: nothing was measured.
    """
    drawn: tuple[tuple[list[Any], Callable[[Axes, Record], None]], ...] = (
        (_peaks(record), _draw_memory),
        (record.of(BertRun), _draw_training),
        (record.of(Times), _draw_times),
    )
    panels = [panel for found, panel in drawn if found]
    if not panels:
        raise BenchError("there is nothing to draw: no part was measured; the text above says why")
    figure, row = plt.subplots(1, len(panels), figsize=(1.5 + 5 * len(panels), 4.6), squeeze=False)
    for axes, panel in zip(row[0], panels, strict=True):
        panel(axes, record)
        axes.set_axisbelow(True)
    footer(figure, "python -m bench fewbit.", record.machine)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure


def _peaks(record: Record) -> list[Peak]:
    """Of the first network that was measured."""
    found = [peak for peak in record.of(Peak) if peak.raw_bytes]
    return [peak for peak in found if (peak.network, peak.batch) == (found[0].network, found[0].batch)]


def _draw_memory(axes: Axes, record: Record) -> None:
    peaks = _peaks(record)
    plain = peaks[0].activation_bytes
    for place, peak in enumerate(peaks):
        axes.barh(place, plain / MIB, color=GREY, height=0.62)
        axes.barh(place, peak.activation_bytes / MIB, color=BLUE, height=0.62)
        saving = "" if place == 0 else f"-{100 * (1 - peak.activation_bytes / plain):.1f} %"
        beside(axes, saving, (plain / MIB, place), (5, 0), va="center", weight="bold")
    axes.set_yticks(range(len(peaks)), [peak.way for peak in peaks])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    axes.margins(x=0.18)
    axes.set_xlabel(f"MiB, batch {peaks[0].batch}")
    titled(axes, "Activation peak of RoBERTa")


def _draw_training(axes: Axes, record: Record) -> None:
    for kind, colour, width in zip(KINDS, (GREY, BLUE, VERMILION), (4.5, 2.8, 1.2), strict=True):
        curves = [run.losses for run in record.of(BertRun) if run.kind == kind]
        if not curves:
            continue
        means = [fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(
            [STRIDE * place for place in range(1, len(means) + 1)], means, color=colour, linewidth=width, label=kind
        )
    axes.axhline(record.settings["entropy"], color=FAINT, linewidth=1, linestyle="--")
    at, words = (1, record.settings["entropy"]), "entropy of the held-out words"
    beside(axes, words, at, (0, 4), xycoords=("axes fraction", "data"), ha="right", color=FAINT)
    lined(axes, "y")
    axes.legend(frameon=False, loc="lower left", title="GELU")
    axes.set_xlabel("steps")
    titled(axes, f"Training loss, nats, mean of {held_out(record).seeds}")


def _draw_times(axes: Axes, record: Record) -> None:
    found = record.of(Times)
    names = [times.name if times.what == "activation" else f"linear, {times.name}" for times in found]
    axes.barh(range(len(names)), [times.ratio for times in found], color=BLUE, height=0.7)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    lined(axes, "x")
    rounds = len(found[0].seconds)
    axes.set_xlabel(f"forward + backward over torch's, median of {rounds} rounds")
    titled(axes, "Time")


TITLES = {"activation": "activation", "linear": "randomized linear"}

SOURCE = "FewBit's README: RoBERTa-base on MRPC, batch 128, on a GPU"


@dataclass(frozen=True)
class Row:
    """A row of its table.

    Attributes:
        gib: the peak, all that is in memory counted.
        saving: of the vanilla row's, as a part, to a thousandth; 0 in that row.
    """

    gib: float
    saving: float


ROWS: Mapping[tuple[int | None, float | None], Row] = MappingProxyType(
    {
        (None, None): Row(11.30, 0.0),
        (3, None): Row(9.75, 0.138),
        (None, 0.2): Row(9.20, 0.186),
        (3, 0.2): Row(7.60, 0.327),
    }
)
"""By the bits of GELU and the part of the rows that linear layers keep; ``None`` is exact."""

SAVINGS: Mapping[str, float] = MappingProxyType({name: ROWS[way.bits, way.ratio].saving for name, way in WAYS.items()})
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
    return f"{row.gib:.2f}", f"{100 * row.saving:.1f}" if row.saving else ""


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
    return row.saving if row is not None and row.saving and cell.network == grid_network(Shape()) else None


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
    """A paragraph a part that was run."""
    settings = record.settings
    if peaks := record.of(Peak):
        networks = "; ".join(dict.fromkeys(f"{one.network}; batch {one.batch}" for one in peaks))
        yield (
            f"memory: {networks}, sequences of different lengths padded to one. "
            f"randomized linear: every linear layer of the encoder keeps a sketch of {RATIO:.0%} of its input's rows. "
            "kept: bytes that live after the forward and did not before. activation peak: the most during forward and "
            "backward, less what was there before and the gradients. with gradients: the same, gradients left in. raw: "
            f"the most in all, {'the process and' if settings['device'] == 'cpu' else 'with'} the weights."
        )
        yield from notes_of_missing(peaks)
    if grid := record.of(GridCell):
        yield (
            f"grid: RoBERTa, {'; '.join(dict.fromkeys(cell.network for cell in grid))}; {ATTENTION} attention, "
            f"dropout {DROPOUT:g}, float32; measured as in the part memory. saving: of the activation peak, and of all "
            "that is in memory, of the exact network's with the same batch."
        )
        yield from (f"{cell.name}, batch {cell.batch}: {cell.reason}." for cell in grid if cell.reason)
    if peaks or grid:
        yield f"published: {SOURCE}; of all that is in memory."
    if record.of(BertRun):
        yield f"Data: {settings['data']}."
        yield f"Recipe: {', '.join(f'{name} {value:g}' for name, value in settings['recipe'].items())}."
        yield (
            "training: runs of a seed share initial weights, order, masks and dropout. Losses in nats a word that was "
            f"to be guessed; training loss: the mean of the last {STRIDE} steps. The words held out have an entropy of "
            f"{settings['entropy']:.3f} nats, the least loss of whoever knows their frequencies; exact training is "
            f"{learned(record):.2f} nats below it. {COMPRESSED}: compress_model(model, 'L1', activations={BITS}). "
            f"{CONTROL}: all gradients set to zero, which shows that the comparison can fail."
        )
    if times := [one for one in record.of(Times) if one.seconds]:
        first = times[0]
        yield (
            f"time: forward and backward over torch's own, in turn; median over median of {len(first.seconds)} rounds. "
            + " ".join(_sizes(times))
        )


def _sizes(found: Sequence[Times]) -> Iterator[str]:
    elements = {times.what: times.elements for times in found}
    if "activation" in elements:
        yield f"Activations of {elements['activation']:,} float32 elements."
    if "linear" in elements:
        features, outputs = FEATURES
        rows = elements["linear"] // features
        yield f"Linear layers of {rows:,} x {features} -> {outputs:,}, {RATIO:.0%} of the rows kept."


def targets(record: Record) -> Iterator[str]:
    """What was asked of the parts that were run."""
    if any(map(judged_memory, record.of(Peak))) or any(map(least_saving, record.of(GridCell))):
        savings = ", ".join(f"{100 * part:.1f} %" for part in SAVINGS.values() if part)
        yield f"activation peak smaller by at least {savings}"
    if record.of(BertRun) and judged_training(record, FEW_BITS):
        yield f"mean loss within {LOSS:.0%} of the exact one's, which is at least {NATS:g} nat below the entropy"
    if any(judged_time(record, times) for times in record.of(Times)):
        yield f"{JUDGED} at most {TIME:.1f} times torch's"


REPORT = Report("Few-bit activations and randomized linear layers", tables, notes, targets, draw=draw)
