"""``python -m bench systems``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch

from bench.cli.arguments import positive
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.runner.deadline import Deadline
from bench.suites.memory.systems import measure, planning
from bench.suites.memory.systems.gpu_subjects import SUBJECTS as GPU_SUBJECTS
from bench.suites.memory.systems.gpu_subjects import WAYS as GPU_WAYS
from bench.suites.memory.systems.peak_subjects import BESIDE
from bench.suites.memory.systems.peak_subjects import SUBJECTS as PEAK_SUBJECTS
from bench.suites.memory.systems.report import REPORT
from bench.suites.memory.systems.results import KIND
from bench.suites.memory.systems.subjects import NAMES, QUICK, SUBJECTS
from bench.ways.general import PEAK_WAYS, PLAIN, QUICK_WAYS, WAYS

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
    words = f"of timed steps; default: {measure.ROUNDS}, {measure.GPU_ROUNDS} with --gpu"
    add.add("--rounds", type=positive, help=words)
    add.seed("of weights and inputs")
    add.quick(
        f"{', '.join(QUICK)} in {len(QUICK_WAYS)} ways, or all of --gpu's without a compiler, {measure.QUICK_ROUNDS} "
        "rounds"
    )
    add.deadline("cell")
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", cell by cell; what the file has is not measured again")
    add.chart()


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
    rounds = measure.QUICK_ROUNDS if asked.quick else measure.GPU_ROUNDS if asked.on_gpu else measure.ROUNDS
    asked.rounds = asked.rounds or rounds


def _usual(quick: bool, gpu: bool, peaks: bool) -> tuple[Iterable[str], Iterable[str]]:
    """The models that are measured by default, and the ways."""
    if peaks:
        return (QUICK if quick else (*BESIDE, *PEAK_SUBJECTS)), PEAK_WAYS
    if gpu:
        return GPU_SUBJECTS, GPU_WAYS
    return (QUICK, QUICK_WAYS) if quick else (SUBJECTS, WAYS)


WHAT = "every way to train with less memory: peaks against time"
BENCH = Bench(KIND, WHAT, options, measure.run, REPORT, settle)
