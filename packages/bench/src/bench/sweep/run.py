"""A run of ``python -m bench sweep``: one subject after another."""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from bench.errors import BenchError, MissingLibrary
from bench.models.libraries import needs
from bench.results.record import Record
from bench.runner.run import begun
from bench.sweep.measure import measure
from bench.sweep.results import KIND, Swept
from bench.sweep.subjects import ECOSYSTEMS, Subject

LEVEL = "L1"
STEPS, QUICK_STEPS = 3, 1
THREADS = 1  # several may add up a gradient in another order each time, and no two would be the same


def run(asked: argparse.Namespace) -> Record:
    """Runs the subjects. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: none of the libraries is installed; the file holds other results.
    """
    missing = _missing(asked.chosen)
    left = [subject for subject in asked.chosen if subject.ecosystem not in missing]
    if not left:
        raise BenchError(f"nothing can be swept: {'; '.join(missing.values())}")
    going = begun(KIND, asked)
    for ecosystem, reason in missing.items():
        going.skip(f"{ecosystem}: {reason}")
    subjects = {(one.ecosystem, one.family, one.name): one for one in left}
    going.measure([Swept(*place) for place in subjects], lambda blank: _measured(subjects[blank.place], asked))
    return going.record


def _measured(subject: Subject, asked: argparse.Namespace) -> Swept:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what compression warns of, the report says as well
            with _deterministic(asked.device == "cuda"):
                return measure(subject, asked.level, asked.steps, asked.seed, asked.device)
    finally:
        gc.collect()  # a model's modules and hooks refer to each other


@contextmanager
def _deterministic(on: bool) -> Iterator[None]:
    """Torch's deterministic algorithms where there are some, so that two steps can be compared bit for bit: by default
    many kernels of CUDA add up a gradient in whatever order their threads come."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on or before[0], warn_only=on or before[1])
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _missing(subjects: Sequence[Subject]) -> dict[str, str]:
    """The ecosystems whose library is not there, and what to do."""
    found = {}
    for ecosystem in dict.fromkeys(subject.ecosystem for subject in subjects):
        try:
            needs(ECOSYSTEMS[ecosystem])
        except MissingLibrary as error:
            found[ecosystem] = str(error)
    return found
