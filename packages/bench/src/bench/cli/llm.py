"""``python -m bench llm``: its options, and what makes it a bench."""

from __future__ import annotations

from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.runner.clock import THREADS
from bench.suites.llm.measure import PARTS, QUICK_ROUNDS, QUICK_SEEDS, ROUNDS, SEEDS, run
from bench.suites.llm.report import REPORT
from bench.suites.llm.results import KIND
from bench.suites.llm.subjects import QUICK, SUBJECTS


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
