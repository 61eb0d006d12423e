"""A run of ``python -m bench sweep``: one subject after the other."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.errors import BenchError, MissingLibrary
from bench.kernels.clock import threads
from bench.machine import Machine
from bench.networks import needs
from bench.progress import progress
from bench.sweep.measure import measure
from bench.sweep.record import Record
from bench.sweep.results import SweepResults, Swept
from bench.sweep.subjects import ECOSYSTEMS, Subject

LEVEL = "L1"
STEPS, QUICK_STEPS = 3, 1
THREADS = 1  # several may add up a gradient in another order each time, and no two would be the same

_PACKAGES = ("torch", "timm", "transformers", "torch-geometric", "actcore", "actcore-integrations")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        subjects: of ``SUBJECTS``; those whose library is not installed are left out.
        level: of ``integrations.LEVELS``.
        steps: compressed ones of each subject.
        seed: of weights, batches, dropout.
        threads: of torch's operators.
        json: the file that results are written to, and taken up from.
    """

    subjects: Sequence[Subject]
    level: str
    steps: int
    seed: int
    threads: int
    json: Path | None


def run(options: Options) -> SweepResults:
    """Runs the subjects, with a progress bar on stderr. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: none of the libraries is installed; the file holds other results.
    """
    missing = _missing(options.subjects)
    if all(subject.ecosystem in missing for subject in options.subjects):
        raise BenchError(f"nothing can be swept: {'; '.join(missing.values())}")
    machine = Machine.here(torch.device("cpu"), options.threads, _PACKAGES)
    record = Record(SweepResults(machine, options.level, options.steps, options.seed), options.json)
    record.update(skipped=[f"{ecosystem}: {reason}" for ecosystem, reason in missing.items()])
    left = [subject for subject in options.subjects if subject.ecosystem not in missing]
    with threads(options.threads), progress("sweep", len(left)) as advance:
        for subject in left:
            if not record.has(subject.ecosystem, subject.name):
                begin = time.perf_counter()
                record.add(_measured(subject, options))
                record.update(seconds=record.results.seconds + time.perf_counter() - begin)
            advance(f"{subject.ecosystem}, {subject.name}")
    return record.results


def _measured(subject: Subject, options: Options) -> Swept:
    """What a subject gave, or why it failed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what compression warns of, the report says as well
            return measure(subject, options.level, options.steps, options.seed)
    except Exception as error:  # whatever one subject fails with, others are to be measured
        reason = " ".join(str(error).split())
        return Swept(subject.ecosystem, subject.family, subject.name, failure=f"{type(error).__name__}: {reason}")
    finally:
        gc.collect()  # a model's modules and hooks refer to each other


def _missing(subjects: Sequence[Subject]) -> dict[str, str]:
    """The ecosystems whose library is not there, and what to do."""
    found = {}
    for ecosystem in dict.fromkeys(subject.ecosystem for subject in subjects):
        try:
            needs(ECOSYSTEMS[ecosystem])
        except MissingLibrary as error:
            found[ecosystem] = str(error)
    return found
