"""``python -m bench sensitivity``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.arguments import THREADS, add_chart, positive
from bench.finish import finish, require_writable
from bench.sensitivity import measure
from integrations import LEVELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_sensitivity)
    parser.add_argument("--model", action="append", choices=measure.MODELS, help="repeatable; default: all")
    adaptive = [name for name, level in LEVELS.items() if level.adaptive and not level.offload]
    parser.add_argument("--level", default="L2", choices=adaptive, help="default: %(default)s")
    parser.add_argument("--pairs", type=positive, help=f"of seeds in the reference; default: {measure.PAIRS}")
    parser.add_argument("--steps", type=positive, help=f"of the gradient's error; default: {measure.STEPS}")
    parser.add_argument("--threads", type=positive, default=THREADS, help="default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(measure.QUICK_MODELS)}; {measure.QUICK_PAIRS} pairs, {measure.QUICK_STEPS} steps: shows that "
        "it works",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")
    add_chart(parser)


def run_sensitivity(options: argparse.Namespace) -> None:
    """``python -m bench sensitivity``."""
    require_writable(options.json, options.chart)
    results = measure.run(
        measure.Options(
            models=list(dict.fromkeys(options.model or (measure.QUICK_MODELS if options.quick else measure.MODELS))),
            level=options.level,
            pairs=options.pairs or (measure.QUICK_PAIRS if options.quick else measure.PAIRS),
            steps=options.steps or (measure.QUICK_STEPS if options.quick else measure.STEPS),
            threads=options.threads,
        )
    )
    finish(results, options.json, options.chart)
