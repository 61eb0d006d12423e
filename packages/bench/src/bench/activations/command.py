"""``python -m bench activations``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.activations import measure
from bench.activations.cases import MODELS
from bench.arguments import THREADS, add_chart, positive
from bench.errors import BenchError
from bench.finish import finish, require_writable
from integrations import LEVELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_activations)
    parser.add_argument(
        "--part", action="append", choices=measure.PARTS, help="of the measurements, repeatable; default: all"
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=MODELS,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    parser.add_argument(
        "--level", action="append", choices=compressing, help=f"repeatable; default: {', '.join(measure.LEVELS)}"
    )
    parser.add_argument("--steps", type=positive, help=f"of the gradient's error; default: {measure.STEPS}")
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {measure.ROUNDS}")
    parser.add_argument("--threads", type=positive, default=THREADS, help="default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(measure.QUICK_MODELS)} at {', '.join(measure.QUICK_LEVELS)}, all parts but "
        f"{measure.PARTS[-1]}, {measure.QUICK_STEPS} steps, {measure.QUICK_ROUNDS} rounds: shows that it works",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")
    add_chart(parser)


def run_activations(options: argparse.Namespace) -> None:
    """``python -m bench activations``."""
    quick = options.quick
    parts = list(dict.fromkeys(options.part or (measure.QUICK_PARTS if quick else measure.PARTS)))
    if options.chart is not None and "models" not in parts:
        raise BenchError("a chart shows the part models; add --part models, or leave --chart out")
    require_writable(options.json, options.chart)
    results = measure.run(
        measure.Options(
            models=list(dict.fromkeys(options.model or (measure.QUICK_MODELS if quick else MODELS))),
            levels=list(dict.fromkeys(options.level or (measure.QUICK_LEVELS if quick else measure.LEVELS))),
            steps=options.steps or (measure.QUICK_STEPS if quick else measure.STEPS),
            rounds=options.rounds or (measure.QUICK_ROUNDS if quick else measure.ROUNDS),
            threads=options.threads,
            parts=parts,
        )
    )
    finish(results, options.json, options.chart)
