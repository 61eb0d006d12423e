"""Results of ``python -m bench activations`` as text."""

from __future__ import annotations

from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table

from bench.activations.notes import ALONE, ERRORS, HELD, MICROSECONDS, NO_RATIO, RATIOS, TIMES, notes
from bench.activations.results import ActivationResults, alone_microseconds
from bench.layout import columns, header
from bench.marks import marked
from bench.memory import AGREEMENT, Memory
from bench.units import MIB


def render(results: ActivationResults) -> RenderableType:
    """Header, tables and notes."""
    tables = (
        (results.models, _models),
        (results.overheads, _overheads),
        (results.memories, _memories),
        (results.adaptations, _adaptations),
        (results.initial, _initial),
    )
    top = header("Models under compression", results.machine, results.seconds)
    return Group(top, *(table(results) for found, table in tables if found), notes(results))


def _models(results: ActivationResults) -> Table:
    table = columns(
        "model", "level", "saved\nMiB", "stored\nMiB", "times\nsmaller", "gradient's\nerror", "step time", labels=2
    )
    for model in results.models:
        table.add_row(model.model, "plain", "", "", "", "", f"{1e3 * median(model.plain_seconds):,.0f} ms  ")
        for level in model.levels:
            least = None if model.model in NO_RATIO else RATIOS.get(level.level)
            error, time = ERRORS.get(level.level), TIMES.get((model.model, level.level))
            slower = model.time_ratio(level)
            table.add_row(
                "",
                level.level,
                f"{level.original_bytes / MIB:,.2f}",
                f"{level.stored_bytes / MIB:,.2f}",
                marked(f"{level.ratio:.1f}", None if least is None else level.ratio >= least),
                marked(f"{level.error:.3f}", None if error is None else level.error <= error),
                marked(f"{slower:.2f}", None if time is None else slower <= time),
            )
    return table


def _overheads(results: ActivationResults) -> Table:
    table = columns(
        "overhead at L1",
        "bytes",
        "saved\ntensors",
        "packed",
        "plain step\nµs",
        "more\nµs",
        "µs one\nleft alone",
        "codec\nµs",
        "µs a packed\nbeyond it",
        labels=2,
    )
    alone = alone_microseconds(results.overheads)
    for entry in results.overheads:
        beyond = None if alone is None or not entry.packed else entry.packed_microseconds(alone)
        table.add_row(
            entry.chain,
            str(entry.nbytes),
            str(entry.saved),
            str(entry.packed),
            f"{1e6 * median(entry.plain_seconds):,.0f}",
            f"{entry.step_microseconds:,.0f}",
            "" if entry.packed else marked(f"{entry.saved_microseconds:.1f}", entry.saved_microseconds <= ALONE),
            f"{entry.codec_microseconds:.1f}",
            "" if beyond is None else marked(f"{beyond:.1f}", beyond <= MICROSECONDS),
        )
    return table


def _memories(results: ActivationResults) -> Table:
    table = columns("memory", "level", "reported\nMiB", "measured\nMiB", "measured /\nreported", "peak\nMiB", labels=2)
    plain: dict[str, Memory] = {}
    for memory in results.memories:
        peak = "" if memory.peak_bytes is None else f"{memory.peak_bytes / MIB:,.1f}"
        if memory.stored_bytes is None:
            plain[memory.model] = memory
            live = "" if memory.live_bytes is None else f"{memory.live_bytes / MIB:,.2f}"
            table.add_row(memory.model, "plain", "", live, "", peak)
            continue
        ratio = memory.agreement(plain[memory.model])
        judged = ratio is not None and memory.model in HELD
        table.add_row(
            "",
            memory.level,
            f"{memory.stored_bytes / MIB:,.2f}",
            "" if ratio is None else f"{ratio * memory.stored_bytes / MIB:,.2f}",
            marked("" if ratio is None else f"{ratio:.3f}", _agrees(ratio) if judged else None),
            peak,
        )
    return table


def _agrees(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) <= AGREEMENT


def _adaptations(results: ActivationResults) -> Table:
    table = columns(
        "adaptation", "level", "step\nms", "measured\nstep, ms", "times\nas long", "every ... steps", "adds", labels=2
    )
    for entry in results.adaptations:
        table.add_row(
            entry.model,
            entry.level,
            f"{1e3 * median(entry.seconds):,.0f}",
            f"{1e3 * median(entry.adapting_seconds):,.0f}",
            f"{entry.steps:.1f}",
            f"{entry.interval:,}",
            f"{entry.share:.1%}",
        )
    return table


def _initial(results: ActivationResults) -> Table:
    levels = list(dict.fromkeys(entry.level for entry in results.initial))
    table = columns("initial", "", *(f"error at\n{level}" for level in levels), labels=2)
    for model in dict.fromkeys(entry.model for entry in results.initial):
        errors = {entry.level: entry.error for entry in results.initial if entry.model == model}
        table.add_row(model, "", *(marked(f"{errors[one]:.3f}", errors[one] <= ERRORS[one]) for one in levels))
    return table
