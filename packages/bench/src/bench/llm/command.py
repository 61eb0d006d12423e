"""``python -m bench llm``: its options, and what makes it a bench."""

from __future__ import annotations

from bench.arguments import THREADS
from bench.llm.measure import QUICK_ROUNDS, ROUNDS, run
from bench.llm.report import REPORT
from bench.llm.results import KIND
from bench.llm.subjects import QUICK, SUBJECTS
from bench.record.bench import Bench
from bench.record.options import Options


def options(add: Options) -> None:
    """Those of the command."""
    usual = [name for name in SUBJECTS if name not in QUICK]
    words = f"of {', '.join(SUBJECTS)}; repeatable"
    add.many("--subject", SUBJECTS, words, default=usual, quick=QUICK, metavar="NAME")
    add.number("--rounds", "of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.threads(THREADS)
    add.quick(", ".join(QUICK))
    add.json(", one by one; what the file has is not measured again")


BENCH = Bench(KIND, "language models: the loss of large vocabularies, whole and in chunks", options, run, REPORT)
