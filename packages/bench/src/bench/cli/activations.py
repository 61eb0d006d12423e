"""``python -m bench activations``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse

from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.runner.clock import THREADS
from bench.suites.memory.activations import measure
from bench.suites.memory.activations.cases import MODELS
from bench.suites.memory.activations.report import REPORT
from bench.suites.memory.activations.results import KIND
from integrations import LEVELS


def options(add: Options) -> None:
    """Those of the command."""
    add.part(measure.PARTS, quick=measure.QUICK_PARTS)
    words = "repeatable; default: all; those whose library is not installed are left out"
    add.many("--model", MODELS, words, default=list(MODELS), quick=measure.QUICK_MODELS)
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    words = f"repeatable; default: {', '.join(measure.LEVELS)}"
    add.many("--level", compressing, words, default=measure.LEVELS, quick=measure.QUICK_LEVELS)
    add.number("--steps", "of the gradient's error", default=measure.STEPS, quick=measure.QUICK_STEPS)
    add.number("--rounds", "of timed steps", default=measure.ROUNDS, quick=measure.QUICK_ROUNDS)
    add.threads(THREADS)
    add.quick(
        f"{', '.join(measure.QUICK_MODELS)} at {', '.join(measure.QUICK_LEVELS)}, all parts but {measure.PARTS[-1]}, "
        f"{measure.QUICK_STEPS} steps, {measure.QUICK_ROUNDS} rounds"
    )
    add.json(", model by model; what the file has is not measured again")
    add.chart()


def check(asked: argparse.Namespace) -> None:
    """Raises ``BenchError`` for a chart of what is not measured."""
    if asked.chart is not None and "models" not in asked.parts:
        raise BenchError("a chart shows the part models; add --part models, or leave --chart out")


BENCH = Bench(KIND, "bytes, gradients and time of models of any kind", options, measure.run, REPORT, check)
