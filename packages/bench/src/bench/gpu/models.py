"""The stage ``models``: ``python -m bench systems`` of whole models, in every way to train."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, Row
from bench.gpu.to_deadline import to_deadline

if TYPE_CHECKING:
    from bench.results.record import Record
    from bench.suites.memory.systems.results import Cell, Figures

_PLAIN = "plain"
_CLAIMS = ["smaller", "planned"]
_MORE = 1.05  # of a plan's peak that may be taken: blocks of torch's allocator are rounded up, and lie apart


def cases(place: Place) -> list[Case]:
    """One, which stops itself."""
    small = ["--gpu", "--quick", "--threads", "1"] if place.dry else []
    return [to_deadline(place, "every model in every way", ["systems", *small], rows, _CLAIMS)]


def rows(record: Record, done: Done) -> Iterator[Row]:
    """A row for each model and way, plain training's first."""
    from bench.suites.memory.systems.results import Cell  # imports actcore, which the stage `build` makes

    plain = {cell.subject: cell.peak_bytes or 0 for cell in record.of(Cell, way=_PLAIN)}
    for cell in record.of(Cell):
        name = f"{cell.subject}: {cell.way}"
        if cell.failure:
            yield Row(name, FAILED, cell.failure, claims=["smaller"])
        elif cell.does_not_apply:
            yield Row(name, SKIPPED, cell.does_not_apply)
        else:
            yield _measured(name, cell, plain.get(cell.subject, 0))
    for line in record.skipped:
        yield Row("left out", NOT_REACHED, line, claims=_CLAIMS)
    if done.reason:  # the file may have what was measured before
        yield Row("the command", FAILED, done.reason, claims=_CLAIMS)


def _measured(name: str, cell: Cell, plain: int) -> Row:
    values: dict[str, float | str] = {}
    peak = cell.peak_bytes
    if peak is not None:
        values["peak MiB"] = _mebibytes(peak)
    if peak is not None and plain:
        values["% of plain"] = round(100 * peak / plain)
    if cell.ratio is not None:
        values |= {"step ms": round(1e3 * median(cell.seconds), 2), "over plain": round(cell.ratio, 2)}
    if cell.figures is not None:
        values |= _of_the_device(cell.figures)
    claims, missed = [], []
    if cell.way != _PLAIN and plain and peak is not None:
        claims.append("smaller")
        if peak >= plain:
            missed.append("its peak is not below plain training's")
    if cell.planned_bytes and peak is not None:
        claims.append("planned")
        if peak > _MORE * cell.planned_bytes:
            missed.append(f"its plan said {_mebibytes(cell.planned_bytes)} MiB")
    return Row(name, MISSED if missed else OK, "; ".join(missed), 0, values, claims)


def _of_the_device(figures: Figures) -> dict[str, float | str]:
    values: dict[str, float | str] = {}
    peaks = {"allocated": figures.allocated_bytes, "active": figures.active_bytes, "reserved": figures.reserved_bytes}
    for kind, peak in peaks.items():
        if peak is not None:
            values[f"{kind} MiB"] = _mebibytes(peak)
    if figures.cpu_seconds:
        values["CPU ms"] = round(1e3 * median(figures.cpu_seconds), 2)
    if figures.captured_seconds:
        values["captured ms"] = round(1e3 * median(figures.captured_seconds), 2)
    if figures.launches is not None:
        values["launches"] = figures.launches
    return values


def _mebibytes(count: int) -> float:
    return round(count / 2**20, 1)
