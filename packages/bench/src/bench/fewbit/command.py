"""``python -m bench fewbit``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench import sentences
from bench.arguments import add_chart, add_shared, positive
from bench.fewbit import measure, memory, step_time
from bench.finish import finish, require_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_fewbit)
    parser.add_argument(
        "--part",
        action="append",
        choices=measure.PARTS,
        help="of the measurements, repeatable; default: all; those that lack a library or data are left out",
    )
    parser.add_argument(
        "--data-root", type=Path, metavar="DIR", help=f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA"
    )
    batches = ", ".join(f"{batch} on {device}" for device, batch in memory.BATCHES.items())
    parser.add_argument("--batch", type=positive, help=f"of the parts memory and grid; default: {batches}")
    parser.add_argument("--layers", type=positive, help="of the parts memory and grid; default: RoBERTa-base's 12")
    parser.add_argument("--seeds", type=positive, help=f"of training, paired; default: {measure.SEEDS}")
    parser.add_argument("--rounds", type=positive, help=f"that count, of what is timed; default: {step_time.ROUNDS}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"small networks, {measure.QUICK_SEEDS} seed, {measure.QUICK_STEPS} steps, {step_time.QUICK_ROUNDS} "
        "rounds: shows that it works",
    )
    place = ", the grid cell by cell and training run by run, and taken up"
    add_shared(parser, threads=torch.get_num_threads(), place=place)
    add_chart(parser)


def run_fewbit(options: argparse.Namespace) -> None:
    """The file is written from the first cell or run on, and taken up if it is there."""
    parts = list(dict.fromkeys(options.part or measure.PARTS))
    require_writable(options.json, options.chart)
    results = measure.run(
        measure.Options(
            parts=parts,
            named=options.part is not None,
            device=torch.device(options.device),
            data_root=options.data_root,
            batch=options.batch,
            layers=options.layers,
            seeds=options.seeds or (measure.QUICK_SEEDS if options.quick else measure.SEEDS),
            rounds=options.rounds or (step_time.QUICK_ROUNDS if options.quick else step_time.ROUNDS),
            threads=options.threads,
            quick=options.quick,
            json=options.json,
        )
    )
    finish(results, options.json, options.chart)
