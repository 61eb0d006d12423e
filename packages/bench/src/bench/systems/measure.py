"""A run of ``python -m bench systems``: cell by cell, each written as it is found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bench import records
from bench.deadline import Deadline
from bench.errors import BenchError, MissingLibrary
from bench.machine import Machine, installed
from bench.progress import progress
from bench.systems import cell as cells
from bench.systems.gpu_subjects import LAST
from bench.systems.results import Cell, SystemResults
from bench.systems.subjects import NAMES, made
from bench.systems.ways import WAYS
from bench.taken_up import commit_of, taken_up
from bench.workers import TooLong

ROUNDS, GPU_ROUNDS, QUICK_ROUNDS = 7, 5, 2
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
        gpu: whether cells have the figures of the device, and share a process: what a start costs is paid once.
        deadline: by which the run ends.
    """

    subjects: Sequence[str]
    ways: Sequence[str]
    timed: bool
    rounds: int
    device: torch.device
    threads: int
    seed: int
    json: Path | None
    gpu: bool = False
    deadline: Deadline = field(default_factory=Deadline)


def run(options: Options) -> SystemResults:
    """Measures the cells that the file does not have, with a progress bar on stderr: each way of all models, in the
    order of ``Options`` with ``gpu_subjects.LAST`` behind them, so that what is worth most is there when the deadline
    comes.

    Raises:
        BenchError: there is no such device; the file holds other results.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    results = begun(options.device, options.threads, options.seed, options.json)
    machine = results.machine
    missing = {name: why for name in options.subjects if (why := missing_for(name))}
    results = replace(results, skipped=[f"{name}: {why}" for name, why in missing.items()])
    left = [
        Cell(name, way)
        for way in options.ways
        for name in options.subjects
        if name not in missing and not _has(results.cell(name, way), options)
    ]
    left.sort(key=lambda cell: (cell.subject, cell.way) in LAST)
    rounds = options.rounds if options.timed else 0
    device, threads, seed = options.device.type, options.threads, options.seed
    with progress("systems", len(left)) as advance, cells.Processes() as processes:
        for place, cell in enumerate(left):
            start = time.perf_counter()
            request = cells.Request(cell, rounds, device, threads, seed, figures=options.gpu)
            found = None if options.deadline.over else _measured(request, processes, options.deadline)
            if found is None:
                results = replace(results, skipped=[*results.skipped, _unreached(left[place:], options.deadline)])
                break
            if found.failure or not options.gpu:  # what has failed may have left anything behind
                processes.end()
            results = replace(
                results,
                cells=_with(results.cells, replace(found, commit=commit_of(machine))),
                seconds=results.seconds + time.perf_counter() - start,
            )
            if options.json is not None:
                records.save(results, options.json)
            advance(f"{cell.subject}, {cell.way}")
    return results


def begun(device: torch.device, threads: int, seed: int, file: Path | None) -> SystemResults:
    """Results of a run here: what the file has, if it is there.

    Raises:
        BenchError: it holds other results.
    """
    machine = Machine.here(device, threads, (*_PACKAGES, *filter(installed, _LIBRARIES)))
    named = "machine, device, seed, number of threads or version of a library"
    return taken_up(SystemResults(machine, device.type, seed), file, _settings, named)


def _measured(request: cells.Request, processes: cells.Processes, deadline: Deadline) -> Cell | None:
    """A cell; ``None`` if the deadline came before it was measured."""
    try:
        return processes.measure(request, deadline.share)
    except TooLong as error:
        return None if deadline.over else replace(request.cell, failure=str(error))


def _unreached(left: Sequence[Cell], deadline: Deadline) -> str:
    models: dict[str, list[str]] = {}
    for cell in left:
        models.setdefault(cell.way, []).append(cell.subject)
    parts = [f"{way} of {', '.join(names)}" for way, names in models.items()]
    return f"{deadline} came before {'; '.join(parts)}"


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
    subjects, ways = list(NAMES), list(WAYS)
    return sorted([*others, cell], key=lambda one: (subjects.index(one.subject), ways.index(one.way)))


def missing_for(name: str) -> str:
    """Which library a model lacks; empty if none."""
    try:
        made(name, 0, torch.device("meta"))
    except MissingLibrary as error:
        return str(error)
    return ""
