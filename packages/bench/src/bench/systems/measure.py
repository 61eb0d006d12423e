"""A run of ``python -m bench systems``: cell by cell, each written as it is found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench import records
from bench.errors import BenchError, MissingLibrary
from bench.machine import Machine, installed
from bench.progress import progress
from bench.systems import cell as cells
from bench.systems.results import Cell, SystemResults
from bench.systems.subjects import SUBJECTS
from bench.systems.ways import WAYS
from bench.taken_up import commit_of, taken_up

ROUNDS, QUICK_ROUNDS = 7, 2
_PACKAGES = ("torch", "actcore", "actcore-integrations")
_LIBRARIES = ("timm", "transformers", "torch-geometric")  # that the models are of


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        subjects: names in ``SUBJECTS``.
        ways: names in ``WAYS``.
        timed: whether steps are timed, for which the machine has to be quiet.
        rounds: of timed steps.
        device: of models and batches.
        threads: of torch's operators.
        seed: of weights and inputs.
        json: the file that results are written to, and taken up from.
    """

    subjects: Sequence[str]
    ways: Sequence[str]
    timed: bool
    rounds: int
    device: torch.device
    threads: int
    seed: int
    json: Path | None


def run(options: Options) -> SystemResults:
    """Measures the cells that the file does not have, with a progress bar on stderr.

    Raises:
        BenchError: there is no such device; the file holds other results.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    machine = Machine.here(options.device, options.threads, (*_PACKAGES, *filter(installed, _LIBRARIES)))
    blank = SystemResults(machine, options.device.type, options.seed)
    named = "machine, device, seed, number of threads or version of a library"
    results = taken_up(blank, options.json, _settings, named)
    missing = {name: why for name in options.subjects if (why := _missing(name))}
    results = replace(results, skipped=[f"{name}: {why}" for name, why in missing.items()])
    left = [
        Cell(name, way)
        for name in options.subjects
        for way in options.ways
        if name not in missing and not _has(results.cell(name, way), options)
    ]
    with progress("systems", len(left)) as advance:
        for cell in left:
            start = time.perf_counter()
            rounds = options.rounds if options.timed else 0
            found = cells.measure(cell, rounds, options.device.type, options.threads, options.seed)
            results = replace(
                results,
                cells=_with(results.cells, replace(found, commit=commit_of(machine))),
                seconds=results.seconds + time.perf_counter() - start,
            )
            if options.json is not None:
                records.save(results, options.json)
            advance(f"{cell.subject}, {cell.way}")
    return results


def _settings(results: SystemResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.device, results.seed


def _has(cell: Cell | None, options: Options) -> bool:
    if cell is None or cell.failure:
        return False
    return bool(cell.does_not_apply or not options.timed or len(cell.seconds) >= options.rounds)


def _with(found: Sequence[Cell], cell: Cell) -> list[Cell]:
    """The cells with another one, in the order of the command line's names."""
    others = [one for one in found if (one.subject, one.way) != (cell.subject, cell.way)]
    subjects, ways = list(SUBJECTS), list(WAYS)
    return sorted([*others, cell], key=lambda one: (subjects.index(one.subject), ways.index(one.way)))


def _missing(name: str) -> str:
    """Which library a model lacks; empty if none."""
    try:
        with torch.device("meta"):
            SUBJECTS[name]()
    except MissingLibrary as error:
        return str(error)
    return ""
