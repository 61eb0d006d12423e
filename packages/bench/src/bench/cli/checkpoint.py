"""``python -m bench checkpoint``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse

import torch

from bench.cli.arguments import positive, size
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.models.architectures import ARCHITECTURES, QUICK
from bench.suites.memory.checkpoint import measure
from bench.suites.memory.checkpoint.report import REPORT
from bench.suites.memory.checkpoint.results import KIND
from bench.units import size_name


def options(add: Options) -> None:
    """Those of the command."""
    words = (
        "default: all; plan and memory are at the size of a model's table, the others at one at which a step takes "
        "seconds at most"
    )
    add.part(measure.PARTS, quick=[part for part in measure.PARTS if part != "compile"], words=words)
    words = "repeatable; default: all; those whose library is not installed are left out"
    add.many("--model", ARCHITECTURES, words, default=list(ARCHITECTURES), quick=list(QUICK))
    add.add("--batch", type=positive, help="of the parts plan and memory; default: by model")
    add.add("--size", type=positive, help="of the parts plan and memory; default: by model")
    words = size_name(measure.MEMORY_LIMIT).replace(" ", "")
    words = f"that a step may take; batches that need more are halved; default: {words}"
    add.add("--memory-limit", type=size, default=measure.MEMORY_LIMIT, help=words)
    words = f"of the part compile, which takes minutes, repeatable; default: {', '.join(measure.COMPILED)}"
    add.many("--compile", ARCHITECTURES, words, default=measure.COMPILED, metavar="MODEL")
    add.number("--rounds", "of timed steps", default=measure.ROUNDS, quick=measure.QUICK_ROUNDS)
    add.seed("of weights, inputs and gradients")
    words = "images in that order, in which CPU convolutions copy nothing"
    add.add("--channels-last", action="store_true", help=words)
    add.quick(f"{', '.join(QUICK)}, {measure.QUICK_ROUNDS} rounds, all parts at small sizes, none compiled")
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", one by one; what the file has is not measured again")
    add.chart()


def settle(asked: argparse.Namespace) -> None:
    """Names the models of the part compile."""
    asked.compiled = asked.compiles


WHAT = "planned recomputation: peaks, time and gradients"
BENCH = Bench(KIND, WHAT, options, measure.run, REPORT, settle)
