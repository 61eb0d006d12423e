"""``python -m bench systems``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import torch

from bench.errors import BenchError
from bench.results.record import Record
from bench.runner.command import Bench, Options, positive
from bench.runner.run import Deadline, Run, begun
from bench.suites.memory.systems import cell as cells
from bench.suites.memory.systems import planning
from bench.suites.memory.systems.entries import KIND, Cell, Compared, Planning
from bench.suites.memory.systems.report import REPORT
from bench.suites.memory.systems.subjects import (
    BESIDE,
    GPU_SUBJECTS,
    GPU_WAYS,
    LAST,
    NAMES,
    PEAK_SUBJECTS,
    QUICK,
    SUBJECTS,
    made,
)
from bench.ways.general import PEAK_WAYS, PLAIN, QUICK_WAYS, WAYS

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


PARTS = ("ways", "peaks", "planning")


def options(add: Options) -> None:
    """Those of the command."""
    add.add(
        "--part",
        choices=PARTS,
        default=PARTS[0],
        help="ways: every way of training, timed; peaks: what plans say of their peaks beside what is measured, of "
        f"{len(BESIDE) + len(PEAK_SUBJECTS)} models of all kinds, not timed; planning: how long it takes, and how good "
        "plans are beside every choice of small steps; default: %(default)s",
    )
    words = (
        f"repeatable: {', '.join(NAMES)}; default: {', '.join(SUBJECTS)}; those whose library is not installed are "
        "left out"
    )
    add.many("--model", (*NAMES, *planning.DEEP), words, metavar="NAME")
    add.many("--way", WAYS, f"repeatable: {'; '.join(WAYS)}; default: all that need no compiler", metavar="WAY")
    words = "with torch.compile, which takes minutes a model; the default on CUDA"
    add.add("--compile", action="store_true", help=words)
    add.add(
        "--gpu",
        action="store_true",
        help=f"{', '.join(GPU_SUBJECTS)} in the ways {'; '.join(GPU_WAYS)}, with what a step takes of the device and "
        "of the processor beside it; without a GPU the models are small; the default on CUDA".replace("%", "%%"),
    )
    words = "peaks and gradients alone, for a machine that is busy"
    add.add("--no-time", action="store_true", help=words)
    words = f"of timed steps; default: {ROUNDS}, {GPU_ROUNDS} with --gpu"
    add.add("--rounds", type=positive, help=words)
    add.seed("of weights and inputs")
    add.quick(
        f"{', '.join(QUICK)} in {len(QUICK_WAYS)} ways, or all of --gpu's without a compiler, {QUICK_ROUNDS} rounds"
    )
    add.deadline("cell")
    add.files()


def settle(asked: argparse.Namespace) -> None:
    """Finds the models and ways, and begins to count the time.

    Raises:
        BenchError: something is asked for that the part planning has not.
    """
    asked.within = Deadline(asked.deadline)
    if asked.part == "planning":
        if asked.device != "cpu" or asked.chart is not None:
            raise BenchError("--part planning has no chart, and plans for a CPU; leave out --chart and --device")
        asked.models = asked.models or list(planning.QUICK if asked.quick else planning.NAMES)
        return
    asked.on_gpu = asked.gpu or asked.device == "cuda"
    peaks = asked.part == "peaks"
    asked.timed = not (asked.no_time or peaks)
    slow = asked.compile or (asked.on_gpu and not asked.quick)
    known, usual = _usual(asked.quick, asked.on_gpu, peaks)
    asked.models = asked.models or list(known)
    ways = asked.ways or [name for name in usual if slow or not WAYS[name].slow]
    asked.ways = list(dict.fromkeys([PLAIN, *ways]))
    rounds = QUICK_ROUNDS if asked.quick else GPU_ROUNDS if asked.on_gpu else ROUNDS
    asked.rounds = asked.rounds or rounds


def _usual(quick: bool, gpu: bool, peaks: bool) -> tuple[Iterable[str], Iterable[str]]:
    """The models that are measured by default, and the ways."""
    if peaks:
        return (QUICK if quick else (*BESIDE, *PEAK_SUBJECTS)), PEAK_WAYS
    if gpu:
        return GPU_SUBJECTS, GPU_WAYS
    return (QUICK, QUICK_WAYS) if quick else (SUBJECTS, WAYS)


WHAT = "every way to train with less memory: peaks against time"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle)
