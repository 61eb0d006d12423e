"""``python -m bench activations``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.errors import BenchError, MissingLibrary
from bench.results.record import Record
from bench.runner.clock import THREADS
from bench.runner.command import Bench, Options
from bench.runner.memory import Memory
from bench.runner.run import Run, begun
from bench.suites.memory.activations import cell
from bench.suites.memory.activations.cell import MODELS
from bench.suites.memory.activations.entries import KIND, Adaptation, InitialError, LevelResult, Overhead
from bench.suites.memory.activations.report import REPORT
from integrations import LEVELS

PARTS = ("models", "overhead", "memory", "adaptation", "initial")
DEFAULT_LEVELS = ("L1", "L1.1", "L2", "L2.2")
STEPS, ROUNDS = 5, 9
QUICK_STEPS, QUICK_ROUNDS = 2, 2
QUICK_PARTS, QUICK_MODELS, QUICK_LEVELS = PARTS[:-1], ("bert", "gcn"), ("L1", "L2")

_OF_MODELS = {"models", "memory", "adaptation"}


def run(asked: argparse.Namespace) -> Record:
    """Runs the parts, with a progress bar each on stderr.

    Raises:
        BenchError: no model's library is installed, or the file holds other results.
    """
    going = begun(KIND, asked)
    names = going.present(asked.models, cell.made) if _OF_MODELS & set(asked.parts) else []
    if not names and _OF_MODELS & set(asked.parts):
        raise BenchError(f"no model can be measured: {'; '.join(going.record.skipped)}")
    for part in asked.parts:
        _RUN[part](going, names, asked)
    return going.record


def _models(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    going.measure_together(
        [[LevelResult(name, level) for level in asked.levels] for name in names],
        lambda some: cell.measure_levels(some[0].model, [one.level for one in some], asked.steps, asked.rounds),
        name="models",
        lacks=lambda one: len(one.seconds) < asked.rounds or len(one.errors) < asked.steps,
    )


def _overhead(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    going.measure(
        [Overhead(chain) for chain in cell.CHAINS],
        lambda blank: cell.measure_overhead(blank.chain, asked.rounds),
        name="overhead",
        lacks=lambda one: len(one.seconds) < asked.rounds,
    )


def _memory(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    going.measure_together(
        [[Memory(name, level) for level in ("L0", *asked.levels)] for name in names],
        lambda some: cell.measure_memory(some[0].model, asked.levels, asked.threads),
        name="memory",
    )


def _adaptation(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    adaptive = [level for level in asked.levels if LEVELS[level].adaptive]
    going.measure(
        [Adaptation(name, level) for name in names for level in adaptive],
        lambda blank: cell.measure_adaptation(blank.model, blank.level, asked.rounds),
        name="adaptation",
        lacks=lambda one: len(one.seconds) < asked.rounds,
    )


def _initial(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    try:
        going.measure_together(
            [[InitialError(name, level) for level in cell.INITIAL_LEVELS] for name in cell.INITIAL_MODELS],
            lambda some: cell.measure_initial(some[0].model, asked.steps, [one.level for one in some]),
            name="initial",
            lacks=lambda one: len(one.errors) < asked.steps,
        )
    except MissingLibrary as error:
        going.skip(f"initial: {error}")


_RUN = {"models": _models, "overhead": _overhead, "memory": _memory, "adaptation": _adaptation, "initial": _initial}


def options(add: Options) -> None:
    """Those of the command."""
    add.part(PARTS, quick=QUICK_PARTS)
    words = "model, repeatable; default: all; models whose library is not installed are skipped"
    add.many("--model", MODELS, words, default=list(MODELS), quick=QUICK_MODELS)
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    words = f"level, repeatable; default: {', '.join(DEFAULT_LEVELS)}"
    add.many("--level", compressing, words, default=DEFAULT_LEVELS, quick=QUICK_LEVELS)
    add.number("--steps", "number of steps that measure the gradient's error", default=STEPS, quick=QUICK_STEPS)
    add.number("--rounds", "number of rounds of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.quick(
        f"{', '.join(QUICK_MODELS)} at {', '.join(QUICK_LEVELS)}, all parts but {PARTS[-1]}, "
        f"{QUICK_STEPS} steps, {QUICK_ROUNDS} rounds"
    )
    add.files(threads=THREADS, device=False)


WHAT = "bytes, gradients and time of models of any kind"
BENCH = Bench(KIND, WHAT, options, run, REPORT, charted="models")
