"""``python -m bench llm``: its options, and what is run."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.models.data import sentence_stream as words
from bench.results.record import Record
from bench.runner.child import in_child
from bench.runner.clock import THREADS
from bench.runner.run import Run, begun
from bench.runner.workers import Ended, Worker
from bench.suites.llm import training
from bench.suites.llm.entries import KIND, Learned, Trained
from bench.suites.llm.report import REPORT
from bench.suites.llm.subjects import QUICK, SUBJECTS, require

ROUNDS, QUICK_ROUNDS = 5, 2
SEEDS, QUICK_SEEDS = 3, 1
PARTS = ("way", "training")


def run(asked: argparse.Namespace) -> Record:
    """Measures what is asked for. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    if "way" in asked.parts:
        _ways(going, asked)
    if "training" in asked.parts:
        _training(going, asked)
    return going.record


def _ways(going: Run, asked: argparse.Namespace) -> None:
    named = dict.fromkeys(way for name in asked.subjects for way in SUBJECTS[name].ways)
    there = going.present(named, require)
    groups = [[Trained(name, way) for way in SUBJECTS[name].ways if way in there] for name in asked.subjects]
    going.measure_together(groups, lambda left: measured(left, asked.rounds, asked.threads))


def measured(left: list[Trained], rounds: int, threads: int) -> list[Trained]:
    """A subject in some of its ways, each in a process of its own, beside its first."""
    name = left[0].subject
    first = Trained(name, SUBJECTS[name].ways[0])
    wanted = [first, *(one for one in left if one.place != first.place)]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("bench.suites.llm.cell", name, one.way, str(threads))) for one in wanted]
        cells = [_once(one, worker) for one, worker in zip(wanted, workers, strict=True)]
        for _ in range(rounds if not cells[0].reason else 0):
            times = [
                {} if cell.reason else _ask(worker, "seconds") for cell, worker in zip(cells, workers, strict=True)
            ]
            cells = [_timed(cell, time, times[0]) for cell, time in zip(cells, times, strict=True)]
    asked_for = {one.place for one in left}
    return [cell for cell in cells if cell.place in asked_for]


def _once(cell: Trained, worker: Worker) -> Trained:
    """What is measured once of a cell."""
    answer = _ask(worker, "once")
    return replace(cell, **answer.get("value", answer))


def _timed(cell: Trained, time: dict[str, Any], plain: dict[str, Any]) -> Trained:
    """A cell with one more round's times; both are needed."""
    if "value" not in time or "value" not in plain:
        return replace(cell, **time) if "failure" in time else cell
    return replace(cell, seconds=[*cell.seconds, time["value"]], plain_seconds=[*cell.plain_seconds, plain["value"]])


def _ask(worker: Worker, request: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = worker.ask(request)  # type: ignore[arg-type]  # any JSON
    except Ended as error:
        return {"failure": str(error)}
    return answer


def _training(going: Run, asked: argparse.Namespace) -> None:
    recipe = training.QUICK if asked.quick else training.RECIPE
    text = words.load(recipe.vocabulary, asked.data_root)
    going.set(data=str(text), recipe={**asdict(recipe), "guess": text.guess})
    options = {"quick": asked.quick, "data_root": asked.data_root and str(asked.data_root), "threads": asked.threads}
    going.measure(
        [Learned(way, seed) for seed in range(asked.seeds) for way in training.WAYS],
        lambda one: in_child(training.trained, one, **options),
        name="training",
    )


def options(add: Options) -> None:
    """Those of the command."""
    words = "way: each subject in its ways; training: a small Llama on sentences, in ways side by side; default: both"
    add.part(PARTS, words=words)
    usual = [name for name in SUBJECTS if name not in QUICK]
    words = f"of {', '.join(SUBJECTS)}; repeatable"
    add.many("--subject", SUBJECTS, words, default=usual, quick=QUICK, metavar="NAME")
    add.number("--rounds", "of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.number("--seeds", "of trainings", default=SEEDS, quick=QUICK_SEEDS)
    add.data_root("folder with mrpc/, to train on; default: ACTCORE_DATA, or else generated sentences")
    add.threads(THREADS)
    add.quick(f"{', '.join(QUICK)}, and a training of some steps")
    add.json(", one by one; what the file has is not measured again")
    add.chart()


BENCH = Bench(KIND, "language models: memory, time and error of every way, and training", options, run, REPORT)
