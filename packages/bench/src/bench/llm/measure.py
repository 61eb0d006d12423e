"""A run of ``python -m bench llm``: each subject in each of its ways, timed in turn."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from bench.llm.results import KIND, Trained
from bench.llm.subjects import SUBJECTS
from bench.record.record import Record
from bench.record.run import begun
from bench.workers import Ended, Worker

ROUNDS, QUICK_ROUNDS = 5, 2


def run(asked: argparse.Namespace) -> Record:
    """Measures the subjects. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    wanted = [Trained(name, SUBJECTS[name].ways[0]) for name in asked.subjects]
    going.measure(wanted, lambda first: measured(first.subject, asked.rounds, asked.threads))
    return going.record


def measured(name: str, rounds: int, threads: int) -> list[Trained]:
    """A subject in all of its ways."""
    ways = SUBJECTS[name].ways
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("bench.llm.cell", name, way, str(threads))) for way in ways]
        cells = [_once(Trained(name, way), worker) for way, worker in zip(ways, workers, strict=True)]
        for _ in range(rounds):
            for cell, worker in zip(cells, workers, strict=True):
                if not cell.failure:
                    cell.seconds.append(_ask(worker, "seconds")["value"])
    return cells


def _once(cell: Trained, worker: Worker) -> Trained:
    """What is measured once of a cell."""
    found: dict[str, Any] = {}
    for metric in ("peak", "gradients", "error", "loss_error"):
        answer = _ask(worker, metric)
        if "failure" in answer:
            return replace(cell, failure=answer["failure"])
        found[metric] = answer["value"]
    return replace(cell, **found)


def _ask(worker: Worker, request: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = worker.ask(request)  # type: ignore[arg-type]  # any JSON
    except Ended as error:
        return {"failure": str(error)}
    return answer
