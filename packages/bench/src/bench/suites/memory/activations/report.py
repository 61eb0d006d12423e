"""The tables and the chart of ``python -m bench activations``; ✓ and ✗ say whether a number reaches its target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table

from bench.results.charts import Bar, Panel
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import bounded, mib, milliseconds, table
from bench.runner.memory import Memory, marked_agreement
from bench.suites.memory.activations.entries import (
    Adaptation,
    InitialError,
    LevelResult,
    Overhead,
    alone_microseconds,
)

RATIOS = {"L1": 5.0, "L2": 7.0, "L2.2": 12.0}
"""Times fewer bytes at least, by level, of ResNet-18, ViT-tiny and BERT."""

NO_RATIO = ("gcn", "resnet50", "llama")
"""Models that nothing was asked of."""

ERRORS = {"L1": 0.15, "L1.1": 0.05}
"""The largest error of the gradient that a level should have."""

TIMES = {
    ("resnet18", "L1"): 1.08,
    ("resnet50", "L1"): 1.08,
    ("vit_tiny", "L1"): 1.12,
    ("bert", "L1"): 1.12,
    ("llama", "L1"): 1.05,
    ("gcn", "L1"): 1.2,
}
"""The longest step that a model at a level should take, over plain's."""

MICROSECONDS, ALONE = 15.0, 8.0
"""At most: of a packed tensor beyond its codec, and of one that is left alone."""

HELD = ("resnet18", "resnet50", "vit_tiny", "bert", "llama")
"""Models whose measured bytes are judged. A graph network's tensors are as small as the objects that hold them."""


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

    def left_alone(entry: Overhead) -> float | None:
        return None if entry.packed else entry.saved_microseconds

    return table(
        overheads,
        ("overhead at L1", lambda entry: entry.chain),
        ("bytes", lambda entry: str(entry.nbytes)),
        ("saved\ntensors", lambda entry: str(entry.saved)),
        ("packed", lambda entry: str(entry.packed)),
        ("plain step\nµs", lambda entry: milliseconds([1e3 * one for one in entry.plain_seconds], 0)),
        ("more\nµs", lambda entry: f"{entry.step_microseconds:,.0f}"),
        ("µs one\nleft alone", lambda entry: bounded(left_alone(entry), ".1f", most=ALONE)),
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
        return "" if memory.stored_bytes is None else marked_agreement(reported(memory), memory.model in HELD)

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


def panels(record: Record) -> list[Panel]:
    """Bytes, errors and times of the part ``models``; red lines are targets."""
    levels = record.measured(LevelResult)
    if not levels:
        return []
    names = [f"{entry.model}, {entry.level}" for entry in levels]
    stored = [
        Bar(name, 100 / entry.smaller, whole=100, words=f"{entry.smaller:.1f}×")
        for name, entry in zip(names, levels, strict=True)
    ]
    errors = [Bar(name, entry.error, mark=ERRORS.get(entry.level)) for name, entry in zip(names, levels, strict=True)]
    times = [
        Bar(name, entry.ratio or 0, interval=(min(entry.ratios), max(entry.ratios)), mark=TIMES.get(entry.place))
        for name, entry in zip(names, levels, strict=True)
    ]
    return [
        Panel("Saved activations, stored", "% of what autograd keeps for backward", bars=stored),
        Panel("Gradient's error", "relative, whole gradient", bars=errors),
        Panel("Time of a step", "over plain", bars=times, line=1),
    ]


def _caption(record: Record) -> str:
    first = record.measured(LevelResult)[0]
    return f"{len(first.errors)} steps, {len(first.seconds)} rounds in turn, medians. Red lines are targets."


REPORT = Report("Models under compression", tables, panels=panels, caption=_caption)
