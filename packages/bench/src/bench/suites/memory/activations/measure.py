"""A run of ``python -m bench activations``: the parts that were asked for, one after another."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.errors import BenchError, MissingLibrary
from bench.results.record import Record
from bench.runner.memory import Memory
from bench.runner.run import Run, begun
from bench.suites.memory.activations import adaptation, cases, initial, levels, memory, overhead
from bench.suites.memory.activations.results import KIND, Adaptation, InitialError, LevelResult, Overhead
from integrations import LEVELS as KNOWN

PARTS = ("models", "overhead", "memory", "adaptation", "initial")
LEVELS = ("L1", "L1.1", "L2", "L2.2")
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
    names = going.present(asked.models, cases.made) if _OF_MODELS & set(asked.parts) else []
    if not names and _OF_MODELS & set(asked.parts):
        raise BenchError(f"no model can be measured: {'; '.join(going.record.skipped)}")
    for part in asked.parts:
        _RUN[part](going, names, asked)
    return going.record


def _models(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    going.measure_together(
        [[LevelResult(name, level) for level in asked.levels] for name in names],
        lambda some: levels.measure(some[0].model, [one.level for one in some], asked.steps, asked.rounds),
        name="models",
        lacks=lambda one: len(one.seconds) < asked.rounds or len(one.errors) < asked.steps,
    )


def _overhead(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    going.measure(
        [Overhead(chain) for chain in overhead.CHAINS],
        lambda blank: overhead.measure(blank.chain, asked.rounds),
        name="overhead",
        lacks=lambda one: len(one.seconds) < asked.rounds,
    )


def _memory(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    going.measure_together(
        [[Memory(name, level) for level in ("L0", *asked.levels)] for name in names],
        lambda some: memory.measure(some[0].model, asked.levels, asked.threads),
        name="memory",
    )


def _adaptation(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    adaptive = [level for level in asked.levels if KNOWN[level].adaptive]
    going.measure(
        [Adaptation(name, level) for name in names for level in adaptive],
        lambda blank: adaptation.measure(blank.model, blank.level, asked.rounds),
        name="adaptation",
        lacks=lambda one: len(one.seconds) < asked.rounds,
    )


def _initial(going: Run, names: Sequence[str], asked: argparse.Namespace) -> None:
    try:
        going.measure_together(
            [[InitialError(name, level) for level in initial.LEVELS] for name in initial.MODELS],
            lambda some: initial.measure(some[0].model, asked.steps, [one.level for one in some]),
            name="initial",
            lacks=lambda one: len(one.errors) < asked.steps,
        )
    except MissingLibrary as error:
        going.skip(f"initial: {error}")


_RUN = {"models": _models, "overhead": _overhead, "memory": _memory, "adaptation": _adaptation, "initial": _initial}
