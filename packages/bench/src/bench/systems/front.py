"""The ways of a model that no other beats in both memory and time."""

from __future__ import annotations

from bench.results.record import Record
from bench.systems.budgets import time_of
from bench.systems.results import Cell
from bench.systems.ways import PLAIN

NOISE = 0.5
"""The gradient's error above which a way is no rival to others: a fifth of such a gradient's square is noise."""

CLOSE = 0.02  # of a peak: a difference that says nothing


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
    for cell in sorted(cells, key=lambda one: (time_of(one), one.peak_bytes or 0)):
        if not best or (cell.peak_bytes or 0) < (1 - CLOSE) * (best[-1].peak_bytes or 0):
            best.append(cell)
    return best


def trains(cell: Cell) -> bool:
    """Whether a way's gradient is known to be hardly noise."""
    return cell.error is not None and cell.error <= NOISE
