"""A run of ``python -m bench operators``: one operator after another."""

from __future__ import annotations

import argparse
import warnings

from bench.operators.measure import measure
from bench.operators.results import KIND, Operated
from bench.operators.subjects import Subject
from bench.results.record import Record
from bench.runner.run import begun

LEVEL = "L1.1"  # 8 bits of all that is rounded
SAMPLES, QUICK_SAMPLES = 16, 1
PLANNED, QUICK_PLANNED = 4, 0
THREADS = 1  # several may add up a gradient in another order each time


def run(asked: argparse.Namespace) -> Record:
    """Runs the operators. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the database cannot be imported; the file holds other results.
    """
    going = begun(KIND, asked)
    known = {one.place: one for one in asked.chosen}
    going.measure([Operated(*place) for place in known], lambda blank: _measured(known[blank.place], asked))
    return going.record


def _measured(subject: Subject, asked: argparse.Namespace) -> Operated:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forwards that nothing can be stored of, which most of these are
        return measure(subject, asked.level, asked.samples, asked.planned, asked.seed)
