"""``python -m bench systems``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from bench.errors import BenchError, DoesNotApply
from bench.results.record import Record
from bench.runner.command import Bench, Options, positive
from bench.runner.run import Deadline, Run, begun
from bench.suites.memory.systems import cell as cells
from bench.suites.memory.systems import compiled, planning
from bench.suites.memory.systems.entries import KIND, Cell, Compared, Compiled, Host, Planning
from bench.suites.memory.systems.report import REPORT
from bench.suites.memory.systems.subjects import (
    BESIDE,
    COMPILED_SUBJECTS,
    GPU_SUBJECTS,
    GPU_WAYS,
    LAST,
    NAMES,
    PEAK_SUBJECTS,
    QUICK,
    QUICK_COMPILED,
    SUBJECTS,
    TWINS,
    made,
)
from bench.ways.compiled import COMPILED, COMPILED_WAYS, HOST_WAYS, QUICK_COMPILED_WAYS
from bench.ways.general import PEAK_WAYS, PLAIN, QUICK_WAYS, TWIN_WAYS, WAYS

ROUNDS, GPU_ROUNDS, HOST_ROUNDS, QUICK_ROUNDS = 7, 5, 50, 2


def run(asked: argparse.Namespace) -> Record:
    """Measures the cells that the file does not have: each way of all models, in the order of the options with
    ``gpu_subjects.LAST`` behind them, so that what is worth most is there when the deadline comes.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    names = going.present(asked.models, require)
    parts = {"planning": _plan, "compiled": _compile, "host": _measure_host}
    parts.get(asked.part, _cells)(going, names, asked)
    return going.record


def _cells(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    rounds = asked.rounds if asked.timed else 0
    request = cells.Request(rounds, asked.device, asked.seed, figures=asked.on_gpu, timed=asked.part == "host")
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


def _measure_host(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    _cells(going, names, asked)
    _compile(going, (), asked)


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


def _compile(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    rounds = asked.rounds if asked.timed else 0
    deadline: Deadline = asked.within
    with compiled.Processes(asked.threads, asked.quick) as processes:

        def measured(cell: Compiled) -> Compiled:
            cell = replace(cell, memory_bytes=_matched_bytes(going, cell))
            return processes.measure(cell, compiled.Request(rounds, asked.device, asked.seed), deadline.left)

        def measured_host(entry: Host) -> Host:
            request = compiled.Request(compiled.HOST_ROUNDS, asked.device, asked.seed)
            return processes.measure_host(entry, request, deadline.left)

        going.measure(
            [Compiled(name, way) for name in names for way in asked.ways],
            measured,
            lacks=lambda cell: len(cell.seconds) < rounds,
            deadline=deadline,
        )
        going.measure([Host(way) for way in asked.host_ways], measured_host, deadline=deadline)


def _matched_bytes(going: Run, cell: Compiled) -> int | None:
    """The measured peak that a plan is to keep to; ``None`` for ways that have no such budget.

    Raises:
        BenchError: the peak is not known.
        DoesNotApply: the other way does not apply, or has failed.
    """
    other = COMPILED_WAYS[cell.way].bytes_of
    if not other:
        return None
    found = going.found(Compiled(cell.subject, other))
    if found is not None and found.outcome:
        raise DoesNotApply(f"{other}: {found.reason}")
    if found is None or not found.peak_bytes:
        raise BenchError(f"{other} has no measured peak; measure it first")
    return found.peak_bytes


def require(name: str) -> None:
    """Raises ``MissingLibrary`` where a model's library is not there."""
    if name not in planning.DEEP:
        made(name, 0, torch.device("meta"))


PARTS = ("ways", "peaks", "planning", "compiled", "host")


def options(add: Options) -> None:
    """Those of the command."""
    add.add(
        "--part",
        choices=PARTS,
        default=PARTS[0],
        help="part to run; ways: every way of training, timed; peaks: planned and measured peaks of "
        f"{len(BESIDE) + len(PEAK_SUBJECTS)} models, not timed; planning: the time of planning, and the quality of "
        "plans compared with all choices for small steps; compiled: see --compile; host: steps that are mostly host "
        f"time, of {', '.join(TWINS)} on one thread, and of 24 tiny layers under torch.compile; default: %(default)s",
    )
    words = (
        f"model, repeatable: {', '.join(NAMES)}; default: {', '.join(SUBJECTS)}; models whose library is not installed "
        "are skipped"
    )
    add.many("--model", (*NAMES, *planning.DEEP), words, metavar="NAME")
    words = f"way of training, repeatable: {'; '.join(WAYS)}; default: all without a compiler, on CUDA all"
    words += f"; with --compile: {'; '.join(COMPILED_WAYS)}"
    add.many("--way", {**WAYS, **COMPILED_WAYS}, words, metavar="WAY")
    words = (
        f"parts compiled and host: {', '.join(COMPILED_SUBJECTS)} under torch.compile, with torch's budget for "
        "activations, with our plans for the same bytes, and with levels; each takes minutes"
    )
    add.add("--compile", action="store_true", help=words)
    add.add(
        "--gpu",
        action="store_true",
        help=f"{', '.join(GPU_SUBJECTS)} in the ways {'; '.join(GPU_WAYS)}, with the use of device and host by a "
        "step; small models without a GPU; default on CUDA".replace("%", "%%"),
    )
    words = "measure peaks and gradients only, for a busy machine"
    add.add("--no-time", action="store_true", help=words)
    words = f"number of rounds of timed steps; default: {ROUNDS}, {GPU_ROUNDS} with --gpu"
    add.add("--rounds", type=positive, help=words)
    add.seed("of weights and inputs")
    add.quick(
        f"{', '.join(QUICK)} in {len(QUICK_WAYS)} ways, or all of --gpu's without a compiler, {QUICK_ROUNDS} rounds; "
        f"with --compile {', '.join(QUICK_COMPILED)} in {len(QUICK_COMPILED_WAYS)} ways, peaks and times in one process"
    )
    add.deadline("cell")
    add.files()


def settle(asked: argparse.Namespace) -> None:
    """Finds the models and ways, and begins to count the time.

    Raises:
        BenchError: something is asked for that the part has not.
    """
    asked.within = Deadline(asked.deadline)
    if asked.compile and asked.part != PARTS[0]:
        raise BenchError(f"--compile has parts of its own; leave out --part {asked.part}, or --compile")
    if asked.compile or asked.part == "compiled":
        _settle_compiled(asked)
        return
    if asked.part == "planning":
        if asked.device != "cpu" or asked.chart is not None:
            raise BenchError("--part planning has no chart and plans for a CPU only; leave out --chart and --device")
        asked.models = asked.models or list(planning.QUICK if asked.quick else planning.NAMES)
        return
    asked.on_gpu = asked.gpu or asked.device == "cuda"
    peaks = asked.part == "peaks"
    asked.timed = not (asked.no_time or peaks)
    if asked.part == "host":
        _settle_host(asked)
        return
    slow = asked.on_gpu and not asked.quick
    known, usual = _usual(asked.quick, asked.on_gpu, peaks)
    asked.models = asked.models or list(known)
    _require_ways(asked.ways, WAYS, "needs --compile")
    ways = asked.ways or [name for name in usual if slow or not WAYS[name].slow]
    asked.ways = list(dict.fromkeys([PLAIN, *ways]))
    rounds = QUICK_ROUNDS if asked.quick else GPU_ROUNDS if asked.on_gpu else ROUNDS
    asked.rounds = asked.rounds or rounds


def _settle_host(asked: argparse.Namespace) -> None:
    """Finds the models and ways of part ``host``.

    Raises:
        BenchError: something is asked for that it does not have.
    """
    if asked.on_gpu or not asked.timed or asked.chart is not None:
        raise BenchError("part host times steps on a CPU; leave out --device, --gpu, --no-time and --chart")
    if asked.threads not in (1, torch.get_num_threads()):  # the default
        raise BenchError(f"part host times steps on one thread; leave out --threads {asked.threads}")
    _require_ways(asked.ways, WAYS, "is not a way of part host")
    asked.threads = 1
    asked.models = asked.models or list(TWINS)
    asked.ways = list(dict.fromkeys([PLAIN, *(asked.ways or TWIN_WAYS)]))
    asked.host_ways = [] if asked.quick else list(HOST_WAYS)
    asked.rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else HOST_ROUNDS)


def _settle_compiled(asked: argparse.Namespace) -> None:
    """Finds the models and ways of part ``compiled``.

    Raises:
        BenchError: a way or a chart is asked for that they do not have.
    """
    if asked.chart is not None:
        raise BenchError("part compiled has no chart; leave out --chart")
    _require_ways(asked.ways, COMPILED_WAYS, "is not a way of --compile")
    with_host = asked.compile and not asked.quick and not asked.no_time
    asked.part, asked.timed = "compiled", not asked.no_time
    asked.rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
    asked.host_ways = list(HOST_WAYS) if with_host else []
    usual = GPU_SUBJECTS if asked.gpu or asked.device == "cuda" else COMPILED_SUBJECTS
    asked.models = asked.models or list(QUICK_COMPILED if asked.quick else usual)
    wanted = asked.ways or (QUICK_COMPILED_WAYS if asked.quick else COMPILED_WAYS)
    needed = {COMPILED, *wanted, *(COMPILED_WAYS[way].bytes_of for way in wanted)}
    asked.ways = [way for way in COMPILED_WAYS if way in needed]


def _require_ways(ways: Iterable[str], known: Iterable[str], words: str) -> None:
    if other := [way for way in ways if way not in known]:
        raise BenchError(f"--way {other[0]!r} {words}; choose among {'; '.join(known)}")


def _usual(quick: bool, gpu: bool, peaks: bool) -> tuple[Iterable[str], Iterable[str]]:
    """The models that are measured by default, and the ways."""
    if peaks:
        return (QUICK if quick else (*BESIDE, *PEAK_SUBJECTS)), PEAK_WAYS
    if gpu:
        return GPU_SUBJECTS, GPU_WAYS
    return (QUICK, QUICK_WAYS) if quick else (SUBJECTS, WAYS)


WHAT = "every way to train with less memory: peaks against time"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle)
