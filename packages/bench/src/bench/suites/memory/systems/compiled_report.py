"""The tables of parts ``compiled`` and ``host``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich.console import RenderableType
from rich.table import Table

from bench.results.record import Record
from bench.results.tables import bounded, dim, mib, milliseconds, number, percent, table
from bench.suites.memory.systems.entries import Compiled, Host
from bench.ways.compiled import COMPILED, EAGER

HOST_TARGET = 1.05
"""The most that a compiled step of ours may take of the host beside a compiled plain one, codecs taken out."""


def over_compiled(record: Record, cell: Compiled) -> float | None:
    """A step's time over that of the compiled plain model; ``None`` where one is unknown.

    Each was timed in turn with plain steps that are not compiled, so that what differs between processes cancels.
    """
    plain = record.find(Compiled, subject=cell.subject, way=COMPILED)
    return None if plain is None else _over(1.0 if cell.way == EAGER else cell.ratio, plain.ratio)


def host_ratios(record: Record, entry: Host) -> tuple[float | None, float | None]:
    """A step's time over that of the compiled plain layers, and the same without the codecs' own time.

    ``None`` where unknown. An exact plan has no codecs.
    """
    plain = record.find(Host, way=COMPILED)
    if plain is None or plain.ratio is None or entry.ratio is None:
        return None, None
    codecs = median(entry.codec_seconds) / median(entry.plain_seconds) if entry.codec_seconds else 0.0
    return entry.ratio / plain.ratio, (entry.ratio - codecs) / plain.ratio


def compiled_tables(record: Record) -> Iterator[Table]:
    """One for each model, and one of the tiny layers; none of what was not measured."""
    for subject in record.values(Compiled, "subject"):
        yield _table(record, subject)
    if entries := record.of(Host):
        yield _host_table(record, entries)


def _table(record: Record, subject: str) -> Table:
    cells = record.of(Compiled, subject=subject)
    what = next((cell.what for cell in cells if cell.what), subject)
    plain = record.find(Compiled, subject=subject, way=COMPILED)
    plain_peak = plain.peak_bytes if plain is not None else None
    return table(
        cells,
        (f"{what}: compiled", lambda cell: cell.way),
        ("budget\nMiB", lambda cell: mib(cell.memory_bytes)),
        ("planned\nMiB", lambda cell: mib(cell.planned_bytes)),
        ("peak\nMiB", lambda cell: mib(cell.peak_bytes)),
        ("of compiled's\n%", lambda cell: percent(cell.peak_bytes, plain_peak)),
        ("step\nms", lambda cell: milliseconds(cell.seconds)),
        ("over\ncompiled's", lambda cell: number(over_compiled(record, cell), ".2f")),
        ("gradient's\nerror", lambda cell: number(cell.error, ".2g")),
        ("compiling\ns", lambda cell: number(cell.compile_seconds, ".1f")),
        ("", lambda cell: dim(cell.outcome or ("not followed" if cell.not_followed else ""))),
    )


def _host_table(record: Record, entries: list[Host]) -> Table:
    def without_codecs(entry: Host) -> RenderableType:
        ratio = host_ratios(record, entry)[1]
        return number(ratio, ".2f") if entry.way == COMPILED else bounded(ratio, ".2f", most=HOST_TARGET)

    return table(
        entries,
        ("24 tiny layers, compiled", lambda entry: entry.way),
        ("step\nms", lambda entry: milliseconds(entry.seconds, 2)),
        ("over\ncompiled's", lambda entry: number(host_ratios(record, entry)[0], ".2f")),
        ("codecs'\ncalls", lambda entry: "" if entry.codecs is None else str(entry.codecs)),
        ("codecs\nms", lambda entry: milliseconds(entry.codec_seconds, 2)),
        ("over compiled's\nwithout codecs", without_codecs),
        ("", lambda entry: dim(entry.outcome)),
    )


def compiled_notes(record: Record) -> Iterator[str]:
    """Why plans are not followed."""
    for cell in record.of(Compiled):
        if cell.not_followed:
            yield f"{cell.subject}, {cell.way}: {cell.not_followed.rstrip('.')}."


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
