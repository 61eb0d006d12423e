"""``python -m bench sensitivity``: its options, and what makes it a bench."""

from __future__ import annotations

from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.runner.clock import THREADS
from bench.suites.sensitivity.measure import MODELS, PAIRS, QUICK_MODELS, QUICK_PAIRS, QUICK_STEPS, STEPS, run
from bench.suites.sensitivity.report import REPORT
from bench.suites.sensitivity.results import KIND
from integrations import LEVELS


def options(add: Options) -> None:
    """Those of the command."""
    add.many("--model", MODELS, "repeatable; default: all", default=list(MODELS), quick=QUICK_MODELS)
    adaptive = [name for name, level in LEVELS.items() if level.adaptive and not level.offload]
    add.add("--level", default="L2", choices=adaptive, help="default: %(default)s")
    add.number("--pairs", "of seeds in the reference", default=PAIRS, quick=QUICK_PAIRS)
    add.number("--steps", "of the gradient's error", default=STEPS, quick=QUICK_STEPS)
    add.threads(THREADS)
    add.quick(f"{', '.join(QUICK_MODELS)}; {QUICK_PAIRS} pairs, {QUICK_STEPS} steps")
    add.json(", model by model; what the file has is not measured again")
    add.chart()


BENCH = Bench(KIND, "how well adaptive levels know which tensors matter", options, run, REPORT)
