"""A run of ``python -m bench fewbit``: the parts that were asked for, one after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from bench import records, sentences
from bench.errors import BenchError, MissingLibrary
from bench.fewbit import grid, memory, step_time, training
from bench.fewbit.bert import Recipe
from bench.fewbit.results import FewBitResults, GridCell, Peak, Times
from bench.fewbit.roberta import ATTENTION, DROPOUT, WAYS, Shape
from bench.kernels.clock import threads
from bench.machine import Machine, installed
from bench.networks import needs
from bench.progress import progress
from bench.taken_up import commit_of, taken_up
from integrations.fewbit import FUNCTIONS

PARTS = ("memory", "grid", "training", "time")
SEEDS, QUICK_SEEDS = 5, 1
QUICK_STEPS = 100

_LIBRARIES = {"memory": "transformers", "grid": "transformers", "training": "transformers"}
_PACKAGES = ("torch", "actcore", "actcore-integrations")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        parts: of ``PARTS``.
        named: whether the parts were asked for by name: then what they lack is an error, otherwise they are left out.
        device: of memory, grid and time. Training is on the CPU: its network is too small for more.
        data_root: folder with the corpus in it; default: ``ACTCORE_DATA``.
        batch: sequences of the network whose memory is measured; ``None``: by device.
        layers: of that network; ``None``: RoBERTa-base's.
        seeds: of training, in pairs; they are 0, 1, ...
        rounds: of timed passes that count.
        threads: of torch's operators.
        quick: whether everything is small, to show that it works.
        json: the file that results are written to, and taken up from: cells of the grid that it has are not measured
            again, nor is a run of training that has ended; parts without cells and runs are.
    """

    parts: Sequence[str]
    named: bool
    device: torch.device
    data_root: Path | None
    batch: int | None
    layers: int | None
    seeds: int
    rounds: int
    threads: int
    quick: bool
    json: Path | None

    @property
    def recipe(self) -> Recipe:
        """Of training."""
        return Recipe(steps=QUICK_STEPS) if self.quick else Recipe()

    @property
    def shape(self) -> Shape:
        """Of the network whose memory is measured."""
        shape = memory.QUICK_SHAPE if self.quick else Shape()
        return shape if self.layers is None else replace(shape, layers=self.layers)

    @property
    def sequences(self) -> int:
        """Of its input."""
        return self.batch or (memory.QUICK_BATCH if self.quick else memory.BATCHES[self.device.type])


def run(options: Options) -> FewBitResults:
    """Runs the parts, with a progress bar on stderr.

    Raises:
        BenchError: there is no such device; a part that was named lacks a library or the corpus; a process failed; the
            file holds other results.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    start = time.perf_counter()
    machine = Machine.here(options.device, options.threads, (*_PACKAGES, *filter(installed, ("transformers",))))
    named = "machine, device, number of threads or version of a library"
    results = taken_up(FewBitResults(machine, options.device.type), options.json, _settings, named)
    if "training" in options.parts:
        _require_the_same_training(options, results)
    earlier = results.seconds
    skipped = []
    with threads(options.threads), progress("fewbit", _steps(options)) as advance:
        for part in options.parts:
            try:
                if part in _LIBRARIES:
                    needs(_LIBRARIES[part])
                results = replace(_RUN[part](options, results, advance), seconds=earlier + time.perf_counter() - start)
                _save(options, results)
            except (MissingLibrary, sentences.MissingSentences) as error:
                if options.named:
                    raise
                skipped.append(f"{part}: {error}")
    return replace(results, skipped=skipped)


def _settings(results: FewBitResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.device


def _memory(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    shape, batch = options.shape, options.sequences
    peaks: list[Peak] = memory.measure(shape, batch, memory.STEPS, options.threads, options.device, advance)
    network = f"RoBERTa, {shape}, {ATTENTION} attention, dropout {DROPOUT:g}, float32"
    commit = commit_of(results.machine)
    return replace(results, network=network, batch=batch, peaks=[replace(peak, commit=commit) for peak in peaks])


def _grid(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    seconds, start = results.seconds, time.perf_counter()

    def keep(found: list[GridCell], what: str) -> None:
        nonlocal results
        results = replace(results, grid=found, seconds=seconds + time.perf_counter() - start)
        _save(options, results)
        advance(what)

    wanted = grid.cells(options.shape, options.sequences, options.quick)
    commit = commit_of(results.machine)
    grid.measure(options.shape, wanted, options.threads, options.device, results.grid, commit, keep)
    return results


def _training(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    seconds, start = results.seconds, time.perf_counter()
    recipe = options.recipe
    data = sentences.load(recipe.vocabulary, recipe.length, options.data_root)
    entropy = training.held_out(data, recipe).entropy()
    results = replace(results, data=str(data), recipe=dict(recipe.numbers()), entropy=entropy)
    for kind, seed in training.runs(options.seeds):
        if any((run.kind, run.seed) == (kind, seed) for run in results.runs):
            print(f"{kind}, seed {seed}: taken from {options.json}", file=sys.stderr)
            continue
        made = training.train(kind, seed, data, recipe, partial(advance, f"{kind}, seed {seed}"))
        runs = [*results.runs, replace(made, commit=commit_of(results.machine))]
        results = replace(results, runs=runs, seconds=seconds + time.perf_counter() - start)
        _save(options, results)
    return results


def _require_the_same_training(options: Options, results: FewBitResults) -> None:
    """Before any part is run: runs of other sentences or another recipe are no pairs of those that are to come."""
    if not results.runs:
        return
    recipe = options.recipe
    try:
        data = str(sentences.load(recipe.vocabulary, recipe.length, options.data_root))
    except sentences.MissingSentences:
        return  # which the part says
    settings = {"data": data, "recipe": dict(recipe.numbers())}
    if other := [name for name, value in settings.items() if getattr(results, name) != value]:
        raise BenchError(
            f"{options.json} holds runs of another training, which differ in {' and '.join(other)}; name another "
            "--json, or delete it"
        )


def _save(options: Options, results: FewBitResults) -> None:
    """Writes what there is by now, so that an interrupted run can go on."""
    if options.json is not None:
        records.save(results, options.json)


def _time(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    elements = step_time.QUICK_ELEMENTS if options.quick else step_time.ELEMENTS
    rows = step_time.QUICK_ROWS if options.quick else step_time.ROWS
    times: list[Times] = [
        *step_time.activations(elements, options.rounds, options.device, advance),
        *step_time.linear(rows, options.rounds, options.device, advance),
    ]
    commit = commit_of(results.machine)
    return replace(results, times=[replace(one, commit=commit) for one in times])


_RUN = {"memory": _memory, "grid": _grid, "training": _training, "time": _time}


def _steps(options: Options) -> int:
    """How often a run says that it is a step further."""
    steps = {
        "memory": len(WAYS),
        "grid": len(grid.cells(options.shape, options.sequences, options.quick)),
        "training": len(training.runs(options.seeds)) * training.strides(options.recipe),
        "time": len(FUNCTIONS) + 1,
    }
    return sum(steps[part] for part in options.parts)
