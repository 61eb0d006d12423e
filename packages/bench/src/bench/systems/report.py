"""Results of ``python -m bench systems`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.layout import columns, header
from bench.systems.budgets import time_of
from bench.systems.budgets_report import budget_tables, notes_of_budgets, peak_table
from bench.systems.figures_report import notes_of_figures, tables_of_figures
from bench.systems.planning_report import notes_of_planning, planning_tables
from bench.systems.results import Cell, SystemResults
from bench.systems.ways import PLAIN, WAYS, label
from bench.units import KIB, MIB

NOISE = 0.5
"""The gradient's error above which a way is no rival to others: a fifth of such a gradient's square is noise."""

_CLOSE = 0.02  # of a peak: a difference that says nothing


def render(results: SystemResults) -> RenderableType:
    """Header, a table for each model, and who wins."""
    top = header("Ways to train with less memory", results.machine, results.seconds)
    tables = [_table(results, subject) for subject in results.subjects]
    taken = [table for subject in results.subjects for table in tables_of_figures(results, subject)]
    return Group(
        top,
        *tables,
        *budget_tables(results),
        *peak_table(results),
        *planning_tables(results),
        *taken,
        Text("\n".join(_notes(results)), style="dim"),
    )


def front(results: SystemResults, subject: str) -> list[Cell]:
    """The cells of a model that no other beats in both memory and time, by falling peak.

    Peaks are the same that differ by ``_CLOSE``. What has plain training's is plain training: another time is noise.
    """
    plain = results.cell(subject, PLAIN)
    most = (1 - _CLOSE) * plain.peak_bytes if plain is not None and plain.peak_bytes else float("inf")
    cells = [
        cell
        for cell in results.cells
        if cell.subject == subject and cell.peak_bytes and cell.ratio and trains(cell)
        if cell.way == PLAIN or cell.peak_bytes < most
    ]
    best: list[Cell] = []
    for cell in sorted(cells, key=lambda one: (time_of(one), one.peak_bytes or 0)):
        if not best or (cell.peak_bytes or 0) < (1 - _CLOSE) * (best[-1].peak_bytes or 0):
            best.append(cell)
    return best


def trains(cell: Cell) -> bool:
    """Whether a way's gradient is known to be hardly noise."""
    return cell.error is not None and cell.error <= NOISE


def _table(results: SystemResults, subject: str) -> Table:
    cells = [cell for cell in results.cells if cell.subject == subject]
    what = next((cell.what for cell in cells if cell.what), subject)
    plain = results.cell(subject, PLAIN)
    # Of tiny models in KiB, so that percentages can be checked.
    unit, name = (MIB, "MiB") if plain is None or (plain.peak_bytes or 0) >= MIB else (KIB, "KiB")
    fresh = results.as_fresh
    states = [results, fresh] if fresh.cells else [results]
    heads = [f"peak\n{name}", "\nof plain's, %", "step time\nover plain's", "gradient's\nerror"]
    if fresh.cells:  # eight columns of such names would be cut short
        heads = [f"peak\n{name}", "\n%", "\ntime", f"fresh:\n{name}", "\n%", "\ntime", "gradient's\nerror"]
    table = columns(what, *heads, "")
    winners = [{cell.way for cell in front(state, subject)} for state in states]
    for cell in cells:
        numbers = [number for state in states for number in _numbers(state, cell, unit)]
        error = "" if cell.error is None else f"{cell.error:.3f}" if cell.error else "0"
        outcome = _outcome(cell)
        where = Text(outcome, style="dim") if outcome else _place([cell.way in found for found in winners])
        table.add_row(label(cell.way), *numbers, error, where)
    return table


def _numbers(state: SystemResults, cell: Cell, unit: int) -> tuple[str, str, str]:
    """Peak, its part of plain's, and time, of steps with one state of the gradients."""
    plain, found = state.cell(cell.subject, PLAIN), state.cell(cell.subject, cell.way)
    if found is None or found.peak_bytes is None:
        return "", "", ""
    return (
        f"{found.peak_bytes / unit:,.1f}",
        f"{100 * found.peak_bytes / plain.peak_bytes:.0f}" if plain and plain.peak_bytes else "",
        "" if found.ratio is None else f"{time_of(found):.2f}",
    )


def _place(wins: Sequence[bool]) -> str:
    """Whether a way is on the fronts of the states of the gradients."""
    if all(wins):
        return "on the front"
    return "front, fresh" if wins[-1] else "front, adding" if wins[0] else ""


def _outcome(cell: Cell) -> str:
    """Of a cell that was not measured, in a word or two; the reason stands below the tables."""
    return "failed" if cell.failure else "does not apply" if cell.does_not_apply else ""


def _notes(results: SystemResults) -> Iterator[str]:
    for reason in results.skipped:
        yield f"Left out: {reason}."
    yield from notes_of_planning(results)
    if not results.cells:
        return
    yield (
        "peak: the most during forward and backward, less what is left after it; steps add to gradients that are "
        "there, fresh ones make them. step time: forward and backward, over plain ones in turn, on a CPU without the "
        "allocator's setting by which peaks are measured. gradient's error: of "
        "the whole gradient, with the same dropout; none for Q-layers where there is dropout, which draw their own. "
        "* not ours. on the "
        f"front: none takes less of both memory and time, peaks within {_CLOSE:.0%} of each other being the same; a "
        f"way whose error is unknown or above {NOISE:g} is not on it."
    )
    for subject in results.subjects:
        found = [cell for cell in front(results, subject) if cell.way != PLAIN]
        if not found:
            continue
        least = found[-1]
        whose = "ours" if WAYS[least.way].ours else "not ours"
        yield f"{subject}: the least memory has {least.way} ({whose}); front: {', '.join(cell.way for cell in found)}."
    yield from notes_of_budgets(results)
    yield from notes_of_figures(results)
    yield from _reasons(results)


def _reasons(results: SystemResults) -> Iterator[str]:
    """Why cells were not measured, once for all models of which the same is to be said."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in results.cells:
        if outcome := _outcome(cell):
            found.setdefault((label(cell.way), outcome, cell.failure or cell.does_not_apply), []).append(cell.subject)
    for (name, outcome, reason), subjects in found.items():
        yield f"{name} ({', '.join(subjects)}) {outcome}: {reason.rstrip('.')}."
