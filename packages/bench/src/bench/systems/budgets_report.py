"""Tables of plans: beside the fastest of all others within each budget, and measured peaks beside planned ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table

from bench.results.record import Record
from bench.results.tables import number, table
from bench.systems.budgets import FASTER, Within, time_of, within_budgets
from bench.systems.results import Cell, as_fresh
from bench.systems.ways import PLAIN, label

_STATES = ("adding", "fresh")


def budget_tables(record: Record) -> Iterator[Table]:
    """A table for each model that plans were timed of."""
    for subject in record.values(Cell, "subject"):
        rows = list(_within(record, subject))
        if rows:
            what = next((cell.what for cell in record.of(Cell, subject=subject) if cell.what), subject)
            yield table(
                rows,
                (f"{what}: within a budget", lambda row: f"{100 * row[1].budget:g} %, {row[0]}"),
                ("error", lambda row: f"{row[1].bound:g}"),
                ("plan's\ntime", lambda row: _time(row[1].plan)),
                ("others'", lambda row: _time(row[1].rival)),
                ("plan's over it", lambda row: number(row[1].ratio, ".2f")),
                ("whose", lambda row: "" if row[1].rival is None else label(row[1].rival.way)),
            )


def _time(cell: Cell | None) -> str:
    return "" if cell is None else f"{time_of(cell):.2f}"


def _within(record: Record, subject: str) -> Iterator[tuple[str, Within]]:
    """By the state of the gradients, budgets that anything reaches."""
    for state, found in zip(_STATES, (record, as_fresh(record)), strict=True):
        for within in within_budgets(found, subject):
            if within.plan is not None or within.rival is not None:
                yield state, within


def notes_of_budgets(record: Record) -> Iterator[str]:
    """Where plans are beaten, and where one's error is above what was allowed."""
    some = False
    for subject in record.values(Cell, "subject"):
        for state, within in _within(record, subject):
            some = True
            if within.beaten and within.rival is not None:
                whose = f"{within.rival.way}, {time_of(within.rival):.2f}"
                plan = "no plan" if within.plan is None else f"the plan's {time_of(within.plan):.2f}"
                yield (f"{subject}, {100 * within.budget:g} %, error {within.bound:g}, {state}: {whose} beats {plan}.")
            plan_cell = within.plan
            if plan_cell is not None and (plan_cell.error or 0) > within.bound:
                yield f"{subject}, {state}: the error of {plan_cell.way} is {plan_cell.error:.3f}, above its bound."
    if some:
        yield (
            "within a budget: of activation peak, as a part of plain's. others': the least time of all others, other "
            "plans and plain training among them, whose measured peak and error are within both. Beaten: one is faster "
            f"by more than {FASTER:.0%}."
        )


def peak_table(record: Record) -> Iterator[Table]:
    """Measured peaks over planned ones; none where nothing was planned."""
    cells = [cell for cell in record.of(Cell) if cell.planned_bytes and cell.peak_bytes]
    fresh = as_fresh(record)
    other = {(cell.subject, cell.way): cell for cell in fresh.of(Cell)}

    def over(place: int) -> Callable[[Cell], str]:
        return lambda cell: _over(record, cell)[place]

    def fresh_over(place: int) -> Callable[[Cell], str]:
        return lambda cell: _over(fresh, other.get((cell.subject, cell.way)))[place]

    if cells:
        yield table(
            cells,
            ("Measured peaks over planned ones", lambda cell: cell.subject),
            ("way", lambda cell: cell.way),
            ("planned\nMiB", over(0)),
            ("measured\nover it", over(1)),
            ("plain's", over(2)),
            ("fresh:\nplanned", fresh_over(0)),
            ("measured\nover it", fresh_over(1)),
            ("plain's", fresh_over(2)),
            labels=2,
        )


def _over(state: Record, cell: Cell | None) -> tuple[str, str, str]:
    if cell is None or not cell.planned_bytes or not cell.peak_bytes:
        return "", "", ""
    plain = state.find(Cell, subject=cell.subject, way=PLAIN)
    plain_peak = plain.peak_bytes if plain is not None else None
    return (
        f"{cell.planned_bytes / 2**20:,.1f}",
        f"{cell.peak_bytes / cell.planned_bytes:.3f}",
        f"{plain_peak / cell.planned_plain_bytes:.3f}" if plain_peak and cell.planned_plain_bytes else "",
    )
