"""``python -m bench llm``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.arguments import THREADS, positive
from bench.finish import finish, require_writable
from bench.llm import measure
from bench.llm.subjects import QUICK, SUBJECTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_llm)
    parser.add_argument(
        "--subject", action="append", choices=SUBJECTS, metavar="NAME", help=f"of {', '.join(SUBJECTS)}; repeatable"
    )
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {measure.ROUNDS}")
    parser.add_argument("--threads", type=positive, default=THREADS, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}: shows that it works")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write all raw values, machine and versions, one by one; what the file has is not measured again",
    )


def run_llm(options: argparse.Namespace) -> None:
    """``python -m bench llm``."""
    require_writable(options.json, None)
    usual = QUICK if options.quick else tuple(name for name in SUBJECTS if name not in QUICK)
    results = measure.run(
        measure.Options(
            subjects=list(dict.fromkeys(options.subject or usual)),
            rounds=options.rounds or (measure.QUICK_ROUNDS if options.quick else measure.ROUNDS),
            threads=options.threads,
            json=options.json,
        )
    )
    finish(results, options.json, None)
