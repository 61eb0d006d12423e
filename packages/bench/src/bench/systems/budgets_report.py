"""Tables of plans: beside the fastest of all others within each budget, and measured peaks beside planned ones."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from bench.layout import columns
from bench.systems.budgets import FASTER, Within, time_of, within_budgets
from bench.systems.results import Cell, SystemResults
from bench.systems.ways import PLAIN, label

_STATES = ("adding", "fresh")


def budget_tables(results: SystemResults) -> list[Table]:
    """A table for each model that plans were timed of."""
    found = []
    for subject in results.subjects:
        rows = list(_within(results, subject))
        if rows:
            what = next((cell.what for cell in results.cells if cell.subject == subject and cell.what), subject)
            table = columns(f"{what}: within a budget", "error", "plan's\ntime", "others'", "plan's over it", "whose")
            for state, within in rows:
                table.add_row(*_row(state, within))
            found.append(table)
    return found


def _within(results: SystemResults, subject: str) -> Iterator[tuple[str, Within]]:
    """By the state of the gradients, budgets that anything reaches."""
    for state, found in zip(_STATES, (results, results.as_fresh), strict=True):
        for within in within_budgets(found, subject):
            if within.plan is not None or within.rival is not None:
                yield state, within


def _row(state: str, within: Within) -> list[str]:
    plan, rival, ratio = within.plan, within.rival, within.ratio
    return [
        f"{100 * within.budget:g} %, {state}",
        f"{within.bound:g}",
        "" if plan is None else f"{time_of(plan):.2f}",
        "" if rival is None else f"{time_of(rival):.2f}",
        "" if ratio is None else f"{ratio:.2f}",
        "" if rival is None else label(rival.way),
    ]


def notes_of_budgets(results: SystemResults) -> Iterator[str]:
    """Where plans are beaten, and where one's error is above what was allowed."""
    some = False
    for subject in results.subjects:
        for state, within in _within(results, subject):
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


def peak_table(results: SystemResults) -> list[Table]:
    """Measured peaks over planned ones, of plain training as each plan has it, and of plans."""
    cells = [cell for cell in results.cells if cell.planned_bytes and cell.peak_bytes]
    if not cells:
        return []
    fresh = results.as_fresh
    heads = ("way", "planned\nMiB", "measured\nover it", "plain's", "fresh:\nplanned", "measured\nover it", "plain's")
    table = columns("Measured peaks over planned ones", *heads, labels=2)
    for cell in cells:
        table.add_row(cell.subject, cell.way, *_over(results, cell), *_over(fresh, fresh.cell(cell.subject, cell.way)))
    return [table]


def _over(state: SystemResults, cell: Cell | None) -> tuple[str, str, str]:
    if cell is None or not cell.planned_bytes or not cell.peak_bytes:
        return "", "", ""
    plain = state.cell(cell.subject, PLAIN)
    plain_peak = plain.peak_bytes if plain is not None else None
    return (
        f"{cell.planned_bytes / 2**20:,.1f}",
        f"{cell.peak_bytes / cell.planned_bytes:.3f}",
        f"{plain_peak / cell.planned_plain_bytes:.3f}" if plain_peak and cell.planned_plain_bytes else "",
    )
