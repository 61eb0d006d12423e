"""The tables and the chart of ``python -m bench activations``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median, quantiles

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from rich.console import RenderableType
from rich.table import Table

from bench.errors import BenchError
from bench.results.charts import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILION, beside, footer, lined, titled
from bench.results.record import Record
from bench.results.report import Report, notes_of_missing
from bench.results.tables import bounded, marked, mib, milliseconds, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.memory.activations.entries import (
    ERRORS,
    TIMES,
    Adaptation,
    InitialError,
    LevelResult,
    Overhead,
    alone_microseconds,
)

_COLOURS = {"L1": GREEN, "L1.1": BLUE, "L2": VERMILION, "L2.2": ORANGE}
_NAMES = {"resnet18": "ResNet-18", "vit_tiny": "ViT-tiny", "bert": "BERT", "gcn": "GCN"}
_BAND = "#E6F1F8"

Row = tuple[float, LevelResult]  # with its place on the vertical axis


def draw(record: Record) -> Figure:
    """Three panels of the part ``models``.

    Raises:
        BenchError: that part was not run.
    """
    rows = _rows(record.measured(LevelResult))
    if not rows:
        raise BenchError("a chart shows the part models; run it with --part models")
    height = 1.9 + 0.3 * (rows[-1][0] + 1)
    figure, panels = plt.subplots(1, 3, figsize=(11, height), sharey=True, width_ratios=(1.35, 1, 1), squeeze=True)
    for axes, drawn in zip(panels, (_draw_bytes, _draw_errors, _draw_times), strict=True):
        drawn(axes, rows)
    size = panels[0]
    size.set_yticks([place for place, _ in rows], [entry.level for _, entry in rows])
    size.set_ylim(rows[-1][0] + 0.7, -0.9)
    for model in dict.fromkeys(entry.model for _, entry in rows):
        own = [place for place, entry in rows if entry.model == model]
        at = 0, sum(own) / len(own)
        words = {"ha": "right", "va": "center", "weight": "bold", "xycoords": ("axes fraction", "data")}
        beside(size, _NAMES.get(model, model), at, (-44, 0), **words)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
        lined(axes, "x")
    _, first = rows[0]
    footer(figure, f"{len(first.errors)} steps, {len(first.seconds)} rounds in turn, medians.", record.machine)
    figure.subplots_adjust(left=0.14, right=0.985, top=1 - 0.45 / height, bottom=1.05 / height, wspace=0.1)
    return figure


def _rows(levels: Sequence[LevelResult]) -> list[Row]:
    """Every level of every model, a gap between models."""
    rows: list[Row] = []
    place = 0.0
    for _, found in groupby(levels, lambda entry: entry.model):
        for entry in found:
            rows.append((place, entry))
            place += 1.0
        place += 0.6
    return rows


def _colour(level: LevelResult) -> str:
    return _COLOURS.get(level.level, PURPLE)


def _draw_bytes(axes: Axes, rows: list[Row]) -> None:
    """A part of what autograd keeps, since models differ a hundredfold."""
    for place, level in rows:
        axes.barh(place, 1, height=0.66, color=GREY)
        axes.barh(place, 1 / level.smaller, height=0.66, color=_colour(level))
        beside(axes, f"{level.smaller:.1f}×", (1 / level.smaller, place), (5, 0), va="center", weight="bold")
        before, after = level.original_bytes / 2**20, level.stored_bytes / 2**20
        axes.text(0.98, place, f"{before:.1f} → {after:.1f} MiB", ha="right", va="center", fontsize=8.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("of what autograd keeps for backward", fontsize=9)
    titled(axes, "Saved activations, stored")


def _draw_errors(axes: Axes, rows: list[Row]) -> None:
    low = min(level.error for _, level in rows if level.error)
    for place, level in rows:
        if (most := ERRORS.get(level.level)) is not None:
            axes.barh(place, most - low / 4, left=low / 4, height=0.84, color=_BAND, zorder=0)
        axes.plot(level.error, place, "o", color=_colour(level), markersize=7, markeredgecolor="white")
    axes.set_xscale("log")
    axes.set_xlim(low / 2, 1)
    axes.xaxis.set_major_locator(FixedLocator([0.003, 0.01, 0.03, 0.1, 0.3]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("relative, whole gradient; band: target", fontsize=9)
    titled(axes, "Gradient's error")


def _draw_times(axes: Axes, rows: list[Row]) -> None:
    for place, level in rows:
        if (most := TIMES.get((level.model, level.level))) is not None:
            axes.barh(place, most, height=0.84, color=_BAND, zorder=0)
        ratios = [a / b for a, b in zip(level.seconds, level.plain_seconds, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        axes.plot([low, high], [place, place], color=GREY, linewidth=2.2, solid_capstyle="round")
        axes.plot(median(ratios), place, "o", color=_colour(level), markersize=7, markeredgecolor="white")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xlim(left=0.9)
    axes.set_xlabel("over plain; line: middle half; band: target", fontsize=9)
    titled(axes, "Time of a step")


# At least, by level, of ResNet-18, ViT-tiny and BERT.
RATIOS = {"L1": 5.0, "L2": 7.0, "L2.2": 12.0}

NO_RATIO = ("gcn", "resnet50", "llama")

MICROSECONDS, ALONE = 15.0, 8.0  # at most: a packed tensor beyond its codec, one that is left alone

HELD = (
    "resnet18",
    "resnet50",
    "vit_tiny",
    "bert",
    "llama",
)  # a graph network's tensors are as small as the objects that hold them


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if levels := record.measured(LevelResult):
        yield _models(levels)
    if overheads := record.measured(Overhead):
        yield _overheads(overheads)
    if memories := record.measured(Memory):
        yield _memories(memories)
    if adaptations := record.measured(Adaptation):
        yield _adaptations(adaptations)
    if initial := record.measured(InitialError):
        yield _initial(initial)


def _models(levels: Sequence[LevelResult]) -> Table:
    """A row of plain training above each model's levels."""
    rows: list[tuple[LevelResult, bool]] = []
    for _, found in groupby(levels, lambda entry: entry.model):
        some = list(found)
        rows += [(some[0], True), *((entry, False) for entry in some)]
    return table(
        rows,
        ("model", lambda row: row[0].model if row[1] else ""),
        ("level", lambda row: "plain" if row[1] else row[0].level),
        ("saved\nMiB", lambda row: mib(row[0].original_bytes, 2)),
        ("stored\nMiB", lambda row: mib(row[0].stored_bytes, 2)),
        ("times\nsmaller", lambda row: bounded(row[0].smaller, ".1f", least=_least(row[0]))),
        ("gradient's\nerror", lambda row: _error(row[0])),
        ("step time", lambda row: bounded(row[0].ratio, ".2f", most=TIMES.get(row[0].place))),
        labels=2,
        instead=lambda row: [*[""] * 4, f"{milliseconds(row[0].plain_seconds, 0)} ms  "] if row[1] else None,
    )


def _least(entry: LevelResult) -> float | None:
    return None if entry.model in NO_RATIO else RATIOS.get(entry.level)


def _error(entry: LevelResult | InitialError) -> RenderableType:
    return bounded(entry.error, ".3f", most=ERRORS.get(entry.level))


def _overheads(overheads: Sequence[Overhead]) -> Table:
    alone = alone_microseconds(overheads)

    def beyond(entry: Overhead) -> float | None:
        return None if alone is None or not entry.packed else entry.packed_microseconds(alone)

    return table(
        overheads,
        ("overhead at L1", lambda entry: entry.chain),
        ("bytes", lambda entry: str(entry.nbytes)),
        ("saved\ntensors", lambda entry: str(entry.saved)),
        ("packed", lambda entry: str(entry.packed)),
        ("plain step\nµs", lambda entry: milliseconds([1e3 * one for one in entry.plain_seconds], 0)),
        ("more\nµs", lambda entry: f"{entry.step_microseconds:,.0f}"),
        (
            "µs one\nleft alone",
            lambda entry: bounded(None if entry.packed else entry.saved_microseconds, ".1f", most=ALONE),
        ),
        ("codec\nµs", lambda entry: f"{entry.codec_microseconds:.1f}"),
        ("µs a packed\nbeyond it", lambda entry: bounded(beyond(entry), ".1f", most=MICROSECONDS)),
        labels=2,
    )


def _memories(memories: Sequence[Memory]) -> Table:
    plain = {memory.model: memory for memory in memories if memory.stored_bytes is None}

    def reported(memory: Memory) -> float | None:
        """The measured bytes over those of the report."""
        return memory.agreement(plain[memory.model]) if memory.model in plain else None

    def measured(memory: Memory) -> str:
        if memory.stored_bytes is None:
            return mib(memory.live_bytes, 2)
        ratio = reported(memory)
        return "" if ratio is None else mib(ratio * memory.stored_bytes, 2)

    def agreement(memory: Memory) -> RenderableType:
        if memory.stored_bytes is None:
            return ""
        ratio = reported(memory)
        judged = ratio is not None and memory.model in HELD
        return marked("" if ratio is None else f"{ratio:.3f}", _agrees(ratio) if judged else None)

    return table(
        memories,
        ("memory", lambda memory: memory.model if memory.stored_bytes is None else ""),
        ("level", lambda memory: "plain" if memory.stored_bytes is None else memory.level),
        ("reported\nMiB", lambda memory: mib(memory.stored_bytes, 2)),
        ("measured\nMiB", measured),
        ("measured /\nreported", agreement),
        ("peak\nMiB", lambda memory: mib(memory.peak_bytes)),
        labels=2,
    )


def _agrees(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) <= AGREEMENT


def _adaptations(adaptations: Sequence[Adaptation]) -> Table:
    return table(
        adaptations,
        ("adaptation", lambda entry: entry.model),
        ("level", lambda entry: entry.level),
        ("step\nms", lambda entry: milliseconds(entry.seconds, 0)),
        ("measured\nstep, ms", lambda entry: milliseconds(entry.adapting_seconds, 0)),
        ("times\nas long", lambda entry: f"{entry.steps:.1f}"),
        ("every ... steps", lambda entry: f"{entry.interval:,}"),
        ("adds", lambda entry: f"{entry.share:.1%}"),
        labels=2,
    )


def _initial(initial: Sequence[InitialError]) -> Table:
    errors = {(entry.model, entry.level): _error(entry) for entry in initial}
    levels = [(f"error at\n{level}", level) for level in dict.fromkeys(entry.level for entry in initial)]
    return table(
        dict.fromkeys(entry.model for entry in initial),
        ("initial", lambda model: model),
        ("", lambda model: ""),
        *((heading, lambda model, level=level: errors.get((model, level), "")) for heading, level in levels),
        labels=2,
    )


def notes(record: Record) -> Iterator[str]:
    """A paragraph a part that was run."""
    levels = record.measured(LevelResult)
    yield from (f"{model}: {what}." for model, what in {entry.model: entry.what for entry in levels}.items())
    yield from (f"{entry.label}: {entry.reason}." for entry in record.entries if entry.failure)
    if levels:
        level = levels[0]  # as many steps and rounds as all others
        yield (
            "saved: what autograd alone keeps of the model's forward. gradient's error: of the whole gradient at "
            "initialisation, relative to full precision with the same dropout; mean of "
            f"{len(level.errors)} steps, each with other noise. step time: forward and backward, no optimizer, over "
            f"plain, in turn; median of the ratios of {len(level.seconds)} rounds. Adaptive levels after two steps, "
            "with their plan."
        )
    if record.of(Overhead):
        yield (
            "overhead: all that compression adds to forward and backward of tiny layers, a step's fixed part included: "
            "over the saved tensors, in the chain whose layers save nothing but buffers, which are left alone; in the "
            "others less that for each weight, over the packed tensors, less the codec, which is the time to compress "
            "and decompress one such tensor in 4 bits with nothing around it."
        )
    if memories := record.of(Memory):
        yield (
            "measured: live bytes of the process after a forward; at a level without what lives beside the untouched "
            "model's saved tensors, too, its result and the graph. peak: the most during forward and backward, less "
            "what was there before and the gradients."
        )
        yield from notes_of_missing(memories)
    if adaptations := record.of(Adaptation):
        yield (
            "adaptation: an ordinary step, with a plan, and one that is measured and makes the next plan, in turn; "
            f"median of the ratios of {len(adaptations[0].seconds)} rounds."
        )
    if initial := record.of(InitialError):
        first = initial[0]
        yield (
            f"initial: models as timm makes them, {first.what}; error of the whole gradient, mean of "
            f"{len(first.errors)} steps, each with other noise."
        )


def targets(record: Record) -> Iterator[str]:
    """What was asked of the parts that were run."""
    if record.of(LevelResult):
        ratios = ", ".join(f"{level} {least:g}" for level, least in RATIOS.items())
        times = ", ".join(f"{model} at {level} {most:g}" for (model, level), most in TIMES.items())
        yield f"times smaller at least {ratios} (not {', '.join(NO_RATIO)}); step time at most {times}"
    if bool(record.of(LevelResult)) or bool(record.of(InitialError)):
        yield f"error at most {', '.join(f'{level} {most:g}' for level, most in ERRORS.items())}"
    if record.of(Overhead):
        yield f"{MICROSECONDS:g} µs a packed tensor beyond its codec, {ALONE:g} µs one that is left alone"
    if record.of(Memory):
        yield f"measured bytes those of the report within {AGREEMENT:.0%} ({', '.join(HELD)})"


REPORT = Report("Models under compression", tables, notes, targets, draw=draw)
