"""``python -m bench systems``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace

import torch

from bench.arguments import add_chart, add_deadline, add_shared, positive
from bench.deadline import Deadline
from bench.errors import BenchError
from bench.finish import finish, require_writable
from bench.kernels.clock import threads
from bench.systems import measure, planning
from bench.systems.gpu_subjects import SUBJECTS as GPU_SUBJECTS
from bench.systems.gpu_subjects import WAYS as GPU_WAYS
from bench.systems.peak_subjects import BESIDE
from bench.systems.peak_subjects import SUBJECTS as PEAK_SUBJECTS
from bench.systems.subjects import NAMES, QUICK, SUBJECTS
from bench.systems.ways import PEAK_WAYS, PLAIN, QUICK_WAYS, WAYS

PARTS = ("ways", "peaks", "planning")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_systems)
    parser.add_argument(
        "--part",
        choices=PARTS,
        default=PARTS[0],
        help="ways: every way of training, timed; peaks: what plans say of their peaks beside what is measured, of "
        f"{len(BESIDE) + len(PEAK_SUBJECTS)} models of all kinds, not timed; planning: how long it takes, and how good "
        "plans are beside every choice of small steps; default: %(default)s",
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=(*NAMES, *planning.DEEP),
        metavar="NAME",
        help=f"repeatable: {', '.join(NAMES)}; default: {', '.join(SUBJECTS)}; those whose library is not installed "
        "are left out",
    )
    parser.add_argument(
        "--way",
        action="append",
        choices=WAYS,
        metavar="WAY",
        help=f"repeatable: {_written(WAYS)}; default: all that need no compiler",
    )
    parser.add_argument(
        "--compile", action="store_true", help="with torch.compile, which takes minutes a model; the default on CUDA"
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help=f"{', '.join(GPU_SUBJECTS)} in the ways {_written(GPU_WAYS)}, with what a step takes of the device and "
        "of the processor beside it; without a GPU the models are small; the default on CUDA",
    )
    parser.add_argument("--no-time", action="store_true", help="peaks and gradients alone, for a machine that is busy")
    parser.add_argument(
        "--rounds", type=positive, help=f"of timed steps; default: {measure.ROUNDS}, {measure.GPU_ROUNDS} with --gpu"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs; default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(QUICK)} in {len(QUICK_WAYS)} ways, or all of --gpu's without a compiler, "
        f"{measure.QUICK_ROUNDS} rounds: shows that it works, in 2 minutes",
    )
    add_deadline(parser, "cell")
    add_shared(parser, threads=torch.get_num_threads(), place=", cell by cell; what the file has is not measured again")
    add_chart(parser)


def _written(ways: Iterable[str]) -> str:
    """Names of ways for a help text, in which ``argparse`` takes a lone percent sign for a placeholder."""
    return "; ".join(ways).replace("%", "%%")


def run_systems(options: argparse.Namespace) -> None:
    """``python -m bench systems``. The file is written from the first cell on, and taken up if it is there."""
    deadline = Deadline(options.deadline)
    require_writable(options.json, options.chart)
    if options.part == "planning":
        _plan(options)
        return
    gpu, peaks = options.gpu or options.device == "cuda", options.part == "peaks"
    slow = options.compile or (gpu and not options.quick)
    known, usual = _usual(options.quick, gpu, peaks)
    ways = options.way or [name for name in usual if slow or not WAYS[name].slow]
    rounds = measure.QUICK_ROUNDS if options.quick else measure.GPU_ROUNDS if gpu else measure.ROUNDS
    results = measure.run(
        measure.Options(
            subjects=list(dict.fromkeys(options.model or known)),
            ways=list(dict.fromkeys([PLAIN, *ways])),
            timed=not (options.no_time or peaks),
            rounds=options.rounds or rounds,
            device=torch.device(options.device),
            threads=options.threads,
            seed=options.seed,
            json=options.json,
            gpu=gpu,
            deadline=deadline,
        )
    )
    finish(results, options.json, options.chart)


def _plan(options: argparse.Namespace) -> None:
    """Part ``planning``."""
    if options.device != "cpu" or options.chart is not None:
        raise BenchError("--part planning has no chart, and plans for a CPU; leave out --chart and --device")
    names = options.model or (planning.QUICK if options.quick else planning.NAMES)
    begun = measure.begun(torch.device(options.device), options.threads, options.seed, options.json)
    missing = {name: why for name in names if name not in planning.DEEP and (why := measure.missing_for(name))}
    begun = replace(begun, skipped=[f"{name}: {why}" for name, why in missing.items()])
    with threads(options.threads):
        steps = planning.QUICK_STEPS if options.quick else planning.STEPS
        found = planning.run(begun, [name for name in names if name not in missing], steps, options.json)
    finish(found, options.json, None)


def _usual(quick: bool, gpu: bool, peaks: bool) -> tuple[Iterable[str], Iterable[str]]:
    """The models that are measured by default, and the ways."""
    if peaks:
        return (QUICK if quick else (*BESIDE, *PEAK_SUBJECTS)), PEAK_WAYS
    if gpu:
        return GPU_SUBJECTS, GPU_WAYS
    return (QUICK, QUICK_WAYS) if quick else (SUBJECTS, WAYS)
