"""A run of ``python -m bench llm``: each subject in each of its ways, timed in turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.llm.results import LlmResults, Trained
from bench.llm.subjects import SUBJECTS
from bench.machine import Machine
from bench.progress import progress
from bench.taken_up import Record
from bench.workers import Ended, Worker

ROUNDS, QUICK_ROUNDS = 5, 2
_PACKAGES = ("torch", "transformers", "actcore", "actcore-integrations")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        subjects: names of ``SUBJECTS``.
        rounds: of timed steps.
        threads: of torch's operators.
        json: the file that results are written to, and taken up from.
    """

    subjects: Sequence[str]
    rounds: int
    threads: int
    json: Path | None


def run(options: Options) -> LlmResults:
    """Measures the subjects, with a progress bar on stderr. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the file holds other results.
    """
    start = time.perf_counter()
    machine = Machine.here(torch.device("cpu"), options.threads, _PACKAGES)
    record = Record(
        LlmResults(machine, options.rounds),
        options.json,
        lambda found: (found.rounds, found.machine.threads),
        "llm run",
    )
    before = record.results.seconds
    done = {cell.subject for cell in record.results.cells if not cell.failure}
    with progress("llm", len(options.subjects)) as advance:
        for name in options.subjects:
            if name not in done:
                others = [cell for cell in record.results.cells if cell.subject != name]
                cells = _measured(name, options, record.commit)
                record.update(cells=[*others, *cells], seconds=before + time.perf_counter() - start)
            advance(name)
    return record.results


def _measured(name: str, options: Options, commit: str) -> list[Trained]:
    """A subject in all of its ways."""
    ways = SUBJECTS[name].ways
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("bench.llm.cell", name, way, str(options.threads))) for way in ways]
        cells = [_once(Trained(name, way, commit=commit), worker) for way, worker in zip(ways, workers, strict=True)]
        for _ in range(options.rounds):
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
