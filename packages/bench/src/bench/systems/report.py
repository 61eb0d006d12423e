"""What is printed of ``python -m bench systems``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, dim, number, percent, table
from bench.systems.budgets import time_of
from bench.systems.budgets_report import budget_tables, notes_of_budgets, peak_table
from bench.systems.chart import draw
from bench.systems.figures_report import notes_of_figures, tables_of_figures
from bench.systems.front import CLOSE, NOISE, front
from bench.systems.planning_report import notes_of_planning, planning_tables
from bench.systems.results import Cell, as_fresh
from bench.systems.ways import PLAIN, WAYS, label
from bench.units import KIB, MIB


def tables(record: Record) -> Iterator[Table]:
    """One for each model, and those of budgets, plans and the device."""
    subjects = record.values(Cell, "subject")
    yield from (_table(record, subject) for subject in subjects)
    yield from budget_tables(record)
    yield from peak_table(record)
    yield from planning_tables(record)
    for subject in subjects:
        yield from tables_of_figures(record, subject)


def _table(record: Record, subject: str) -> Table:
    cells = record.of(Cell, subject=subject)
    what = next((cell.what for cell in cells if cell.what), subject)
    plain = record.find(Cell, subject=subject, way=PLAIN)
    # Of tiny models in KiB, so that percentages can be checked.
    unit, name = (MIB, "MiB") if plain is None or (plain.peak_bytes or 0) >= MIB else (KIB, "KiB")
    fresh = as_fresh(record)
    states = [record, fresh] if fresh.entries else [record]
    heads = [f"peak\n{name}", "\nof plain's, %", "step time\nover plain's"]
    if fresh.entries:  # eight columns of such names would be cut short
        heads = [f"peak\n{name}", "\n%", "\ntime", f"fresh:\n{name}", "\n%", "\ntime"]
    winners = [{cell.way for cell in front(state, subject)} for state in states]
    numbers = {cell.way: [one for state in states for one in _numbers(state, cell, unit)] for cell in cells}

    def column(place: int) -> Column[Cell]:
        return heads[place], lambda cell: numbers[cell.way][place]

    return table(
        cells,
        (what, lambda cell: label(cell.way)),
        *(column(place) for place in range(len(heads))),
        ("gradient's\nerror", lambda cell: number(cell.error, ".3f") if cell.error else number(cell.error, "g")),
        ("", lambda cell: dim(cell.outcome) if cell.outcome else _place([cell.way in found for found in winners])),
    )


def _numbers(state: Record, cell: Cell, unit: int) -> tuple[str, str, str]:
    """Peak, its part of plain's, and time, of steps with one state of the gradients."""
    plain = state.find(Cell, subject=cell.subject, way=PLAIN)
    found = state.find(Cell, subject=cell.subject, way=cell.way)
    if found is None or found.peak_bytes is None:
        return "", "", ""
    return (
        f"{found.peak_bytes / unit:,.1f}",
        percent(found.peak_bytes, plain.peak_bytes) if plain else "",
        "" if found.ratio is None else f"{time_of(found):.2f}",
    )


def _place(wins: Sequence[bool]) -> str:
    """Whether a way is on the fronts of the states of the gradients."""
    if all(wins):
        return "on the front"
    return "front, fresh" if wins[-1] else "front, adding" if wins[0] else ""


def notes(record: Record) -> Iterator[str]:
    """What the numbers are, and who wins."""
    yield from notes_of_planning(record)
    if not record.of(Cell):
        return
    yield (
        "peak: the most during forward and backward, less what is left after it; steps add to gradients that are "
        "there, fresh ones make them. step time: forward and backward, over plain ones in turn, on a CPU without the "
        "allocator's setting by which peaks are measured. gradient's error: of "
        "the whole gradient, with the same dropout; none for Q-layers where there is dropout, which draw their own. "
        "* not ours. on the "
        f"front: none takes less of both memory and time, peaks within {CLOSE:.0%} of each other being the same; a "
        f"way whose error is unknown or above {NOISE:g} is not on it."
    )
    for subject in record.values(Cell, "subject"):
        found = [cell for cell in front(record, subject) if cell.way != PLAIN]
        if not found:
            continue
        least = found[-1]
        whose = "ours" if WAYS[least.way].ours else "not ours"
        yield f"{subject}: the least memory has {least.way} ({whose}); front: {', '.join(cell.way for cell in found)}."
    yield from notes_of_budgets(record)
    yield from notes_of_figures(record)
    yield from _reasons(record)


def _reasons(record: Record) -> Iterator[str]:
    """Why cells were not measured, once for all models of which the same is to be said."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in record.of(Cell):
        why = cell.failure or cell.does_not_apply
        if cell.outcome:
            found.setdefault((label(cell.way), cell.outcome, why), []).append(cell.subject)
    for (name, outcome, reason), subjects in found.items():
        yield f"{name} ({', '.join(subjects)}) {outcome}: {reason.rstrip('.')}."


REPORT = Report("Ways to train with less memory", tables, notes, draw=draw)
