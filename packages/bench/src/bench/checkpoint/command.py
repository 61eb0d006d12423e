"""``python -m bench checkpoint``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse

import torch

from bench.arguments import add_chart, add_shared, positive, size
from bench.checkpoint import measure
from bench.checkpoint.architectures import ARCHITECTURES, QUICK
from bench.finish import finish, require_writable
from bench.units import size_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_checkpoint)
    parser.add_argument(
        "--part",
        action="append",
        choices=measure.PARTS,
        help="of the measurements, repeatable; default: all; plan and memory are at the size of a model's table, the "
        "others at one at which a step takes seconds at most",
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=ARCHITECTURES,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    parser.add_argument("--batch", type=positive, help="of the parts plan and memory; default: by model")
    parser.add_argument("--size", type=positive, help="of the parts plan and memory; default: by model")
    parser.add_argument(
        "--memory-limit",
        type=size,
        default=measure.MEMORY_LIMIT,
        help="that a step may take; batches that need more are halved; default: "
        f"{size_name(measure.MEMORY_LIMIT).replace(' ', '')}",
    )
    parser.add_argument(
        "--compile",
        action="append",
        choices=ARCHITECTURES,
        metavar="MODEL",
        help=f"of the part compile, which takes minutes, repeatable; default: {', '.join(measure.COMPILED)}",
    )
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {measure.ROUNDS}")
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs and gradients; default: %(default)s")
    parser.add_argument(
        "--channels-last", action="store_true", help="images in that order, in which CPU convolutions copy nothing"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(QUICK)}, {measure.QUICK_ROUNDS} rounds, all parts at small sizes, none compiled: shows "
        "that it works",
    )
    add_shared(parser, threads=torch.get_num_threads(), place=", one by one; what the file has is not measured again")
    add_chart(parser)


def run_checkpoint(options: argparse.Namespace) -> None:
    """``python -m bench checkpoint``. The file is written from the first result on, and taken up if it is there."""
    require_writable(options.json, options.chart)
    models = options.model or (QUICK if options.quick else ARCHITECTURES)
    parts = options.part or [part for part in measure.PARTS if part != "compile" or not options.quick]
    results = measure.run(
        measure.Options(
            models=list(dict.fromkeys(models)),
            parts=list(dict.fromkeys(parts)),
            device=torch.device(options.device),
            threads=options.threads,
            memory_limit=options.memory_limit,
            batch=options.batch,
            size=options.size,
            compiled=list(dict.fromkeys(options.compile or measure.COMPILED)),
            rounds=options.rounds or (measure.QUICK_ROUNDS if options.quick else measure.ROUNDS),
            seed=options.seed,
            quick=options.quick,
            json=options.json,
            channels_last=options.channels_last,
        )
    )
    finish(results, options.json, options.chart)
