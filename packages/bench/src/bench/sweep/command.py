"""``python -m bench sweep``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.results.record import Record
from bench.sweep import page
from bench.sweep.report import REPORT
from bench.sweep.results import KIND
from bench.sweep.run import LEVEL, QUICK_STEPS, STEPS, THREADS, run
from bench.sweep.subjects import ECOSYSTEMS, QUICK, QUICK_WIDE, SUBJECTS, WIDE, Subject
from integrations import LEVELS


def options(add: Options) -> None:
    """Those of the command."""
    words = "repeatable; default: all; those whose library is not installed are left out"
    add.many("--ecosystem", ECOSYSTEMS, words)
    names = dict.fromkeys(subject.name for subject in (*SUBJECTS, *WIDE))
    add.many("--subject", names, "a model or a layer, repeatable; default: all of the ecosystems", metavar="NAME")
    words = "instead: Llama, ViT and BERT of one layer, from hidden size 64 to 8192; takes 9 GiB"
    add.add("--widths", action="store_true", help=words)
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    add.add("--level", choices=compressing, default=LEVEL, help="default: %(default)s")
    add.number("--steps", "of the gradient's error", default=STEPS, quick=QUICK_STEPS)
    add.seed("of weights, batches and dropout")
    add.device()
    add.threads(THREADS)
    add.quick(f"two or three of each ecosystem, {QUICK_STEPS} step")
    add.json(", one by one; what the file has is not measured again")
    add.add("--page", type=Path, metavar="FILE", help="write the tables as Markdown")


def check(asked: argparse.Namespace) -> None:
    """Finds the subjects that were asked for, as ``chosen``.

    Raises:
        BenchError: there are none.
    """
    asked.chosen = [
        subject
        for subject in (WIDE if asked.widths else SUBJECTS)
        if subject.ecosystem in (asked.ecosystems or (subject.ecosystem,))
        and subject.name in (asked.subjects or (_quick(subject, asked.widths) if asked.quick else (subject.name,)))
    ]
    if not asked.chosen:
        ecosystems = ", ".join(asked.ecosystems)
        raise BenchError(f"{ecosystems} has none of {', '.join(asked.subjects)}; leave out --ecosystem or --subject")


def _quick(subject: Subject, wide: bool) -> tuple[str, ...]:
    return QUICK_WIDE if wide else QUICK[subject.ecosystem]


def write_page(record: Record, asked: argparse.Namespace) -> None:
    """Writes the page, if one was asked for."""
    if asked.page is not None:
        page.write(record, asked.page)


WHAT = "one compressed training step of many models and layers"
BENCH = Bench(KIND, WHAT, options, run, REPORT, check, write_page)
