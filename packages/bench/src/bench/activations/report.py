"""What is printed of ``python -m bench activations``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table

from bench.activations.chart import draw
from bench.activations.notes import ALONE, ERRORS, HELD, MICROSECONDS, NO_RATIO, RATIOS, TIMES, notes, targets
from bench.activations.results import Adaptation, InitialError, LevelResult, Overhead, alone_microseconds
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import marked, mib, milliseconds, table
from bench.runner.memory import AGREEMENT, Memory


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if levels := [entry for entry in record.of(LevelResult) if not entry.failure]:
        yield _models(levels)
    if overheads := [entry for entry in record.of(Overhead) if not entry.failure]:
        yield _overheads(overheads)
    if memories := [entry for entry in record.of(Memory) if not entry.failure]:
        yield _memories(memories)
    if adaptations := [entry for entry in record.of(Adaptation) if not entry.failure]:
        yield _adaptations(adaptations)
    if initial := [entry for entry in record.of(InitialError) if not entry.failure]:
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
        ("times\nsmaller", lambda row: _smaller(row[0])),
        ("gradient's\nerror", lambda row: _error(row[0])),
        ("step time", lambda row: _time(row[0])),
        labels=2,
        instead=lambda row: [*[""] * 4, f"{milliseconds(row[0].plain_seconds, 0)} ms  "] if row[1] else None,
    )


def _smaller(entry: LevelResult) -> RenderableType:
    least = None if entry.model in NO_RATIO else RATIOS.get(entry.level)
    return marked(f"{entry.smaller:.1f}", None if least is None else entry.smaller >= least)


def _error(entry: LevelResult | InitialError) -> RenderableType:
    most = ERRORS.get(entry.level)
    return marked(f"{entry.error:.3f}", None if most is None else entry.error <= most)


def _time(entry: LevelResult) -> RenderableType:
    most, slower = TIMES.get((entry.model, entry.level)), entry.ratio or 0.0
    return marked(f"{slower:.2f}", None if most is None else slower <= most)


def _overheads(overheads: Sequence[Overhead]) -> Table:
    alone = alone_microseconds(overheads)
    return table(
        overheads,
        ("overhead at L1", lambda entry: entry.chain),
        ("bytes", lambda entry: str(entry.nbytes)),
        ("saved\ntensors", lambda entry: str(entry.saved)),
        ("packed", lambda entry: str(entry.packed)),
        ("plain step\nµs", lambda entry: milliseconds([1e3 * one for one in entry.plain_seconds], 0)),
        ("more\nµs", lambda entry: f"{entry.step_microseconds:,.0f}"),
        ("µs one\nleft alone", _left_alone),
        ("codec\nµs", lambda entry: f"{entry.codec_microseconds:.1f}"),
        ("µs a packed\nbeyond it", lambda entry: _beyond(entry, alone)),
        labels=2,
    )


def _left_alone(entry: Overhead) -> RenderableType:
    return "" if entry.packed else marked(f"{entry.saved_microseconds:.1f}", entry.saved_microseconds <= ALONE)


def _beyond(entry: Overhead, alone: float | None) -> RenderableType:
    if alone is None or not entry.packed:
        return ""
    beyond = entry.packed_microseconds(alone)
    return marked(f"{beyond:.1f}", beyond <= MICROSECONDS)


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


REPORT = Report("Models under compression", tables, notes, targets, draw=draw)
