"""A run of ``python -m bench systems``: cell by cell, each written as it is found."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from bench.results.record import Record
from bench.runner.deadline import Deadline
from bench.runner.run import Run, begun
from bench.suites.memory.systems import cell as cells
from bench.suites.memory.systems import planning
from bench.suites.memory.systems.gpu_subjects import LAST
from bench.suites.memory.systems.results import KIND, Cell, Compared, Planning
from bench.suites.memory.systems.subjects import made

ROUNDS, GPU_ROUNDS, QUICK_ROUNDS = 7, 5, 2


def run(asked: argparse.Namespace) -> Record:
    """Measures the cells that the file does not have: each way of all models, in the order of the options with
    ``gpu_subjects.LAST`` behind them, so that what is worth most is there when the deadline comes.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    names = going.present(asked.models, require)
    (_plan if asked.part == "planning" else _cells)(going, names, asked)
    return going.record


def _cells(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    rounds = asked.rounds if asked.timed else 0
    request = cells.Request(rounds, asked.device, asked.seed, figures=asked.on_gpu)
    deadline: Deadline = asked.within
    wanted = [Cell(name, way) for way in asked.ways for name in names]
    wanted.sort(key=lambda cell: (cell.subject, cell.way) in LAST)
    with cells.Processes(asked.threads) as processes:

        def measured(cell: Cell) -> Cell:
            found = processes.measure(Cell(cell.subject, cell.way), request, deadline.share)
            uncaptured = found.figures is not None and found.figures.not_captured
            if found.failure or uncaptured or not asked.on_gpu:  # what has failed may have left anything behind
                processes.end()
            return found

        going.measure(wanted, measured, lacks=lambda cell: len(cell.seconds) < rounds, deadline=deadline)


def _plan(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    steps = planning.QUICK_STEPS if asked.quick else planning.STEPS
    planning.pay_for_imports()
    going.measure(
        [Planning(name) for name in names], lambda one: planning.planned(one.subject, asked.seed), lacks=lambda _: True
    )
    going.measure(
        [Compared(ops) for ops in planning.OPS],
        lambda one: planning.compared(one.ops, steps, asked.seed),
        lacks=lambda _: True,
    )


def require(name: str) -> None:
    """Raises ``MissingLibrary`` where a model's library is not there."""
    if name not in planning.DEEP:
        made(name, 0, torch.device("meta"))
