"""``python -m bench kernels``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse

from bench.cli.arguments import positive, size
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.results.record import Record
from bench.runner.clock import THREADS
from bench.suites.kernels import estimate, estimate_report, measure
from bench.suites.kernels.cases import FLOATS, GROUP, INTEGERS
from bench.suites.kernels.report import REPORT
from bench.suites.kernels.results import KIND
from bench.units import size_name

_OF_A_RUN = ("case", "bits", "group", "dtype", "size", "rounds", "alone", "quick")


def options(add: Options) -> None:
    """Those of the command."""
    add.add("--case", action="append", metavar="TEXT", help="part of a case's name, repeatable; default: all")
    add.add("--bits", action="append", type=int, choices=range(1, 9), help="repeatable; default: all")
    words = f"of a group, repeatable; default: {GROUP}"
    add.add("--group", action="append", type=_group, metavar="ELEMENTS", help=words)
    names = [str(dtype).removeprefix("torch.") for dtype in (*FLOATS, *INTEGERS)]
    add.add("--dtype", action="append", choices=names, help="repeatable; default: all that a case takes")
    words = "; ".join(f"{device}: {', '.join(map(size_name, sizes))}" for device, sizes in measure.SIZES.items())
    words = f"of the tensor, such as 4KiB or 256MiB, repeatable; default: {words}"
    add.add("--size", action="append", type=size, help=words)
    add.add("--rounds", type=positive, help=f"that count, of each case; default: {measure.ROUNDS}")
    words = "without plain PyTorch and other libraries: only copies beside"
    add.add("--alone", action="store_true", help=words)
    add.quick(f"{' and '.join(map(size_name, measure.QUICK_SIZES))}, {measure.QUICK_ROUNDS} rounds")
    words = "runs nothing: counts the instructions of the CUDA kernels, which takes nvcc and cuobjdump"
    add.add("--estimate", action="store_true", help=words)
    add.add("--against", metavar="COMMIT", default="", help="with --estimate: beside those of a commit")
    add.device()
    add.threads(THREADS)
    add.json(", case by case; what the file has is not measured again")
    add.chart()


def _group(text: str) -> int:
    """The size of a group, as an argument's type."""
    value = positive(text, least=32)
    if value % 32:
        raise argparse.ArgumentTypeError(f"must be a multiple of 32, got {text!r}")
    return value


def settle(asked: argparse.Namespace) -> None:
    """Finds what a run has.

    Raises:
        BenchError: what was asked for does not go together.
    """
    if asked.against and not asked.estimate:
        raise BenchError("--against names a commit for --estimate; give that, too, or leave --against out")
    if asked.estimate:
        given = [f"--{name}" for name in _OF_A_RUN if getattr(asked, name)]
        if given:
            raise BenchError(f"--estimate runs nothing, so {', '.join(given)} cannot change it; leave that out")
        return
    sizes = asked.size or (measure.QUICK_SIZES if asked.quick else measure.SIZES[asked.device])
    asked.sizes, asked.cases, asked.dtypes = sorted(set(sizes)), asked.case or (), asked.dtype or ()
    asked.groups = asked.group or (GROUP,)
    asked.rounds = asked.rounds or (measure.QUICK_ROUNDS if asked.quick else measure.ROUNDS)


def run(asked: argparse.Namespace) -> Record:
    """Measures, or counts instructions."""
    return estimate.run(asked.against, asked.threads) if asked.estimate else measure.run(asked)


WHAT = "time codecs and operators beside copies, plain PyTorch and others"
ESTIMATE = ((estimate.KIND, estimate_report.REPORT),)
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle, others=ESTIMATE)
