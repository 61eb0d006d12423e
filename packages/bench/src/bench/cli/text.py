"""``python -m bench text``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse

import torch

from bench.cli.arguments import positive
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.models.data import mrpc as sentences
from bench.models.data.glue_tasks import AUTO, GENERATED, TASKS
from bench.models.glue_networks import NETWORKS
from bench.suites.text import measure
from bench.suites.text.report import REPORT
from bench.suites.text.results import KIND
from bench.ways import text as ways
from bench.ways.general import PLAIN

TRAINED, MEASURED = ("tiny",), ("base",)  # networks, where none is named


def options(add: Options) -> None:
    """Those of the command."""
    add.part(measure.PARTS)
    words = f"repeatable; {AUTO}: MRPC at hand, otherwise {GENERATED}; default: {AUTO} and {GENERATED}"
    add.many("--task", (AUTO, *TASKS), words, default=(AUTO, GENERATED), quick=(AUTO,))
    words = (
        f"repeatable; default: {', '.join(TRAINED)} for accuracy, {', '.join(MEASURED)} for memory and time; the "
        "others are fine-tuned from the weights of the hub"
    )
    add.many("--model", NETWORKS, words)
    words = f"repeatable: {ways.FORMS}; {PLAIN} is always run; default: {', '.join(ways.DEFAULT)}"
    add.many("--way", None, words, metavar="NAME", kind=ways.way)
    words = "the ways of FewBit's tables: GELU in 1 to 4 bits, each kind of sketch at 50, 20 and 10 %%"
    add.add("--fewbit", action="store_true", help=words)
    words = "train large networks from scratch, on words, without the hub"
    add.add("--random-weights", action="store_true", help=words)
    add.data_root(f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA")
    add.number("--seeds", "of training, paired", default=measure.SEEDS, quick=measure.QUICK_SEEDS)
    add.add("--epochs", type=positive, help=f"of training; default: {measure.EPOCHS}")
    add.add("--batch", type=positive, help="sentences at a time, in all parts; default: by network and task")
    add.add("--rate", type=_rate, help="of training, the most; default: by network and task")
    add.number("--rounds", "of timed steps", default=measure.ROUNDS, quick=measure.QUICK_ROUNDS)
    add.quick(
        f"{', '.join(ways.QUICK)}; {measure.QUICK_SEEDS} seed, {measure.QUICK_STEPS} steps, "
        f"{measure.QUICK_ROUNDS} rounds"
    )
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", cell by cell; what the file has is not measured again")
    add.chart()


def settle(asked: argparse.Namespace) -> None:
    """Finds the networks that are trained and those that are measured, and the ways."""
    asked.trained = asked.models or list(TRAINED)
    asked.measured = asked.models or list(TRAINED if asked.quick else MEASURED)
    named = [*asked.ways, *(ways.FEWBIT if asked.fewbit else ())]
    asked.ways = list(dict.fromkeys([PLAIN, *(named or (ways.QUICK if asked.quick else ways.DEFAULT))]))


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1 such as 2e-5, got {text!r}")
    return value


WHAT = "BERT on GLUE's tasks: accuracy, memory and time of every way"
BENCH = Bench(KIND, WHAT, options, measure.run, REPORT, settle)
