"""What is printed of ``python -m bench activations``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report, notes_of_missing
from bench.results.tables import bounded, marked, mib, milliseconds, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.memory.activations.chart import draw
from bench.suites.memory.activations.results import (
    ERRORS,
    TIMES,
    Adaptation,
    InitialError,
    LevelResult,
    Overhead,
    alone_microseconds,
)

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
