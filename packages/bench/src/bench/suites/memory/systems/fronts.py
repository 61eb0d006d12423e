"""Within each budget, the plan beside the fastest of all others that take no more: whether anything is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.results.record import Record
from bench.suites.memory.systems.results import Cell
from bench.ways.general import BOUNDS, BUDGETS, PLAIN, WAYS

FASTER = 0.03
"""By how much of its time another way may be faster: medians of the same step differ by as much."""

_MORE = 0.03  # of a budget, by which measured peaks may lie above planned ones

NOISE = 0.5
"""The gradient's error above which a way is no rival to others: a fifth of such a gradient's square is noise."""

CLOSE = 0.02  # of a peak: a difference that says nothing


@dataclass(frozen=True)
class Within:
    """What trains within a budget.

    Attributes:
        budget: as a fraction of plain training's activation peak.
        bound: of the gradient's error.
        plan: the cell of the plan for both; ``None`` where there is none, or its measured peak is above the budget.
        rival: the fastest of all other cells within both, other plans among them; ``None`` where there is none.
    """

    budget: float
    bound: float
    plan: Cell | None
    rival: Cell | None

    @property
    def ratio(self) -> float | None:
        """The plan's time over the rival's; ``None`` where one of them is missing."""
        if self.plan is None or self.rival is None:
            return None
        return relative_time(self.plan) / relative_time(self.rival)

    @property
    def beaten(self) -> bool:
        """Whether the rival is faster by more than medians differ, or alone."""
        if self.ratio is None:
            return self.plan is None and self.rival is not None
        return self.ratio > 1 + FASTER


def relative_time(cell: Cell) -> float:
    """A step's time over a plain one's, which a plain one's is not."""
    return 1.0 if cell.way == PLAIN else cell.ratio or 0.0


def within_budgets(record: Record, subject: str) -> Iterator[Within]:
    """Of a model, for each budget and bound that a plan was asked for, what trains within them.

    A cell is within a budget if its measured peak is, or is above by no more than measured peaks are above planned
    ones; and within a bound if its measured error is known and no larger.
    """
    plain = record.find(Cell, subject=subject, way=PLAIN)
    if plain is None or not plain.peak_bytes:
        return
    cells = record.of(Cell, subject=subject)
    for bound in BOUNDS:
        for budget in BUDGETS:
            asked = [cell for cell in cells if (WAYS[cell.way].budget, WAYS[cell.way].bound) == (budget, bound)]
            if not asked:
                continue
            most = (1 + _MORE) * budget * plain.peak_bytes
            fitting = [cell for cell in cells if _fits(cell, most, bound)]
            plan = next((cell for cell in asked if _fits(cell, most, float("inf"))), None)
            others = [cell for cell in fitting if cell is not plan]
            yield Within(budget, bound, plan, min(others, key=relative_time, default=None))


def _fits(cell: Cell, most: float, bound: float) -> bool:
    if not cell.peak_bytes or not cell.ratio or cell.error is None:
        return False
    return cell.peak_bytes <= most and cell.error <= bound


def front(record: Record, subject: str) -> list[Cell]:
    """The cells of a model that no other beats in both memory and time, by falling peak.

    Peaks are the same that differ by ``CLOSE``. What has plain training's is plain training: another time is noise.
    """
    plain = record.find(Cell, subject=subject, way=PLAIN)
    most = (1 - CLOSE) * plain.peak_bytes if plain is not None and plain.peak_bytes else float("inf")
    cells = [
        cell
        for cell in record.of(Cell)
        if cell.subject == subject and cell.peak_bytes and cell.ratio and trains(cell)
        if cell.way == PLAIN or cell.peak_bytes < most
    ]
    best: list[Cell] = []
    for cell in sorted(cells, key=lambda one: (relative_time(one), one.peak_bytes or 0)):
        if not best or (cell.peak_bytes or 0) < (1 - CLOSE) * (best[-1].peak_bytes or 0):
            best.append(cell)
    return best


def trains(cell: Cell) -> bool:
    """Whether a way's gradient is known to be hardly noise."""
    return cell.error is not None and cell.error <= NOISE
