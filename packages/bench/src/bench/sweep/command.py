"""``python -m bench sweep``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.arguments import positive
from bench.errors import BenchError
from bench.finish import finish, require_writable
from bench.sweep import page, run
from bench.sweep.subjects import ECOSYSTEMS, QUICK, SUBJECTS
from integrations import LEVELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_sweep)
    parser.add_argument(
        "--ecosystem",
        action="append",
        choices=ECOSYSTEMS,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    parser.add_argument(
        "--subject",
        action="append",
        choices=list(dict.fromkeys(subject.name for subject in SUBJECTS)),
        metavar="NAME",
        help="a model or a layer, repeatable; default: all of the ecosystems",
    )
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    parser.add_argument("--level", choices=compressing, default=run.LEVEL, help="default: %(default)s")
    parser.add_argument("--steps", type=positive, help=f"of the gradient's error; default: {run.STEPS}")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and dropout; default: %(default)s")
    parser.add_argument("--threads", type=positive, default=run.THREADS, help="default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"two or three of each ecosystem, {run.QUICK_STEPS} step: shows that it works",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write all raw values, machine and versions, one by one; what the file has is not measured again",
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables as Markdown")


def run_sweep(options: argparse.Namespace) -> None:
    """The file is written from the first subject on, and taken up if it is there."""
    require_writable(options.json, None)
    require_writable(options.page, None)
    asked = [
        subject
        for subject in SUBJECTS
        if subject.ecosystem in (options.ecosystem or (subject.ecosystem,))
        and subject.name in (options.subject or (QUICK[subject.ecosystem] if options.quick else (subject.name,)))
    ]
    if not asked:
        ecosystems = ", ".join(options.ecosystem)
        raise BenchError(f"{ecosystems} has none of {', '.join(options.subject)}; leave out --ecosystem or --subject")
    results = run.run(
        run.Options(
            subjects=asked,
            level=options.level,
            steps=options.steps or (run.QUICK_STEPS if options.quick else run.STEPS),
            seed=options.seed,
            threads=options.threads,
            json=options.json,
        )
    )
    finish(results, options.json, None)
    if options.page is not None:
        page.write(results, options.page)
