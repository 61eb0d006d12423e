"""``python -m bench kernels``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse

import torch

from bench.arguments import THREADS, add_chart, add_shared, positive, size
from bench.errors import BenchError
from bench.finish import finish, require_writable
from bench.kernels import estimate, measure
from bench.kernels.cases import FLOATS, GROUP, INTEGERS
from bench.units import size_name

_OF_A_RUN = ("case", "bits", "group", "dtype", "size", "rounds", "alone", "quick")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_kernels)
    parser.add_argument(
        "--case", action="append", metavar="TEXT", help="part of a case's name, repeatable; default: all"
    )
    parser.add_argument("--bits", action="append", type=int, choices=range(1, 9), help="repeatable; default: all")
    parser.add_argument(
        "--group", action="append", type=_group, metavar="ELEMENTS", help=f"of a group, repeatable; default: {GROUP}"
    )
    names = [str(dtype).removeprefix("torch.") for dtype in (*FLOATS, *INTEGERS)]
    parser.add_argument("--dtype", action="append", choices=names, help="repeatable; default: all that a case takes")
    parser.add_argument(
        "--size",
        action="append",
        type=size,
        help="of the tensor, such as 4KiB or 256MiB, repeatable; default: "
        + "; ".join(f"{device}: {', '.join(map(size_name, sizes))}" for device, sizes in measure.SIZES.items()),
    )
    parser.add_argument("--rounds", type=positive, help=f"that count, of each case; default: {measure.ROUNDS}")
    parser.add_argument(
        "--alone", action="store_true", help="without plain PyTorch and other libraries: only copies beside"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{' and '.join(map(size_name, measure.QUICK_SIZES))}, {measure.QUICK_ROUNDS} rounds: shows that it works",
    )
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="runs nothing: counts the instructions of the CUDA kernels, which takes nvcc and cuobjdump",
    )
    parser.add_argument("--against", metavar="COMMIT", default="", help="with --estimate: beside those of a commit")
    add_shared(parser, threads=THREADS, place=", case by case")
    add_chart(parser)


def _group(text: str) -> int:
    """The size of a group, as an argument's type."""
    value = positive(text, least=32)
    if value % 32:
        raise argparse.ArgumentTypeError(f"must be a multiple of 32, got {text!r}")
    return value


def run_kernels(options: argparse.Namespace) -> None:
    """``python -m bench kernels``."""
    require_writable(options.json, options.chart)
    if options.against and not options.estimate:
        raise BenchError("--against names a commit for --estimate; give that, too, or leave --against out")
    if options.estimate:
        given = [f"--{name}" for name in _OF_A_RUN if getattr(options, name)]
        if given:
            raise BenchError(f"--estimate runs nothing, so {', '.join(given)} cannot change it; leave that out")
        finish(estimate.run(options.against, options.threads), options.json, options.chart)
        return
    sizes = options.size or (measure.QUICK_SIZES if options.quick else measure.SIZES[options.device])
    results = measure.run(
        measure.Options(
            device=torch.device(options.device),
            threads=options.threads,
            sizes=sorted(set(sizes)),
            rounds=options.rounds or (measure.QUICK_ROUNDS if options.quick else measure.ROUNDS),
            names=options.case or (),
            bits=options.bits or (),
            groups=options.group or (GROUP,),
            dtypes=options.dtype or (),
            with_others=not options.alone,
            json=options.json,
        )
    )
    finish(results, options.json, options.chart)
