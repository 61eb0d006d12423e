"""``python -m bench text``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench import sentences
from bench.arguments import add_chart, add_shared, positive
from bench.finish import finish, require_writable
from bench.systems.ways import PLAIN
from bench.text import measure, ways
from bench.text.models import NETWORKS
from bench.text.tasks import AUTO, GENERATED, TASKS

TRAINED, MEASURED = ("tiny",), ("base",)  # networks, where none is named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_text)
    parser.add_argument(
        "--part", action="append", choices=measure.PARTS, help="of the measurements, repeatable; default: all"
    )
    parser.add_argument(
        "--task",
        action="append",
        choices=(AUTO, *TASKS),
        help=f"repeatable; {AUTO}: MRPC at hand, otherwise {GENERATED}; default: {AUTO} and {GENERATED}",
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=NETWORKS,
        help=f"repeatable; default: {', '.join(TRAINED)} for accuracy, {', '.join(MEASURED)} for memory and time; the "
        "others are fine-tuned from the weights of the hub",
    )
    parser.add_argument(
        "--way",
        action="append",
        type=ways.way,
        metavar="NAME",
        help=f"repeatable: {ways.FORMS}; {PLAIN} is always run; default: {', '.join(ways.DEFAULT)}".replace("%", "%%"),
    )
    parser.add_argument(
        "--fewbit",
        action="store_true",
        help="the ways of FewBit's tables: GELU in 1 to 4 bits, each kind of sketch at 50, 20 and 10 %%",
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="train large networks from scratch, on words, without the hub"
    )
    parser.add_argument(
        "--data-root", type=Path, metavar="DIR", help=f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA"
    )
    parser.add_argument("--seeds", type=positive, help=f"of training, paired; default: {measure.SEEDS}")
    parser.add_argument("--epochs", type=positive, help=f"of training; default: {measure.EPOCHS}")
    parser.add_argument(
        "--batch", type=positive, help="sentences at a time, in all parts; default: by network and task"
    )
    parser.add_argument("--rate", type=_rate, help="of training, the most; default: by network and task")
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {measure.ROUNDS}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(ways.QUICK)}; {measure.QUICK_SEEDS} seed, {measure.QUICK_STEPS} steps, "
        f"{measure.QUICK_ROUNDS} rounds: shows that it works".replace("%", "%%"),
    )
    add_shared(parser, threads=torch.get_num_threads(), place=", cell by cell; what the file has is not measured again")
    add_chart(parser)


def run_text(options: argparse.Namespace) -> None:
    """The file is written from the first cell on, and taken up if it is there."""
    require_writable(options.json, options.chart)
    named = [*(options.way or ()), *(ways.FEWBIT if options.fewbit else ())]
    quick = options.quick
    results = measure.run(
        measure.Options(
            parts=list(dict.fromkeys(options.part or measure.PARTS)),
            models=list(dict.fromkeys(options.model or TRAINED)),
            measured=list(dict.fromkeys(options.model or (TRAINED if quick else MEASURED))),
            tasks=list(dict.fromkeys(options.task or ((AUTO,) if quick else (AUTO, GENERATED)))),
            ways=list(dict.fromkeys([PLAIN, *(named or (ways.QUICK if quick else ways.DEFAULT))])),
            device=torch.device(options.device),
            data_root=options.data_root,
            random_weights=options.random_weights,
            seeds=options.seeds or (measure.QUICK_SEEDS if quick else measure.SEEDS),
            epochs=options.epochs,
            batch=options.batch,
            rate=options.rate,
            rounds=options.rounds or (measure.QUICK_ROUNDS if quick else measure.ROUNDS),
            threads=options.threads,
            quick=quick,
            json=options.json,
        )
    )
    finish(results, options.json, options.chart)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1 such as 2e-5, got {text!r}")
    return value
