"""``python -m bench operators``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse
from functools import partial

from bench.cli.arguments import positive
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.operators.report import REPORT
from bench.operators.results import KIND
from bench.operators.run import LEVEL, PLANNED, QUICK_PLANNED, QUICK_SAMPLES, SAMPLES, THREADS, run
from bench.operators.subjects import subjects


def options(add: Options) -> None:
    """Those of the command."""
    add.many("--operator", None, "by the name below torch, such as linalg.eigh, repeatable; default: all")
    add.number("--samples", "most of an operator", default=SAMPLES, quick=QUICK_SAMPLES)
    words = "most samples of an operator that a plan is followed with"
    add.number("--planned", words, default=PLANNED, quick=QUICK_PLANNED, kind=partial(positive, least=0))
    add.add("--level", choices=[LEVEL], default=LEVEL, help="default: %(default)s")
    add.seed("of samples")
    add.threads(THREADS)
    add.quick("the largest sample of each operator, and no plans")
    add.json(", one by one; what the file has is not measured again")


def check(asked: argparse.Namespace) -> None:
    """Finds the operators that were asked for, as ``chosen``.

    Raises:
        BenchError: there are none, or torch's database cannot be imported.
    """
    asked.chosen = [one for one in subjects() if one.info.name in (asked.operators or (one.info.name,))]
    if not asked.chosen:
        raise BenchError(f"torch's database has none of {', '.join(asked.operators)}; name them as torch.NAME is named")


BENCH = Bench(KIND, "torch's own database of operators under compression", options, run, REPORT, check)
