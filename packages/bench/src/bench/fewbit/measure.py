"""A run of ``python -m bench fewbit``: the parts that were asked for, one after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from bench import sentences
from bench.errors import BenchError, MissingLibrary
from bench.fewbit import memory, step_time, training
from bench.fewbit.bert import Recipe
from bench.fewbit.results import FewBitResults, Peak, Times
from bench.fewbit.roberta import ATTENTION, DROPOUT, WAYS, Shape
from bench.fewbit.training import BertRun
from bench.fewbit.unfinished import Unfinished
from bench.kernels.clock import threads
from bench.machine import Machine
from bench.networks import needs
from bench.progress import progress
from integrations.fewbit import FUNCTIONS

PARTS = ("memory", "training", "time")
SEEDS, QUICK_SEEDS = 5, 1
QUICK_STEPS = 100

_LIBRARIES = {"memory": "transformers", "training": "transformers"}
_PACKAGES = ("torch", "actcore", "actcore-integrations")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        parts: of ``PARTS``.
        named: whether the parts were asked for by name: then what they lack is an error, otherwise they are left out.
        device: of memory and time. Training is on the CPU: its network is too small for more.
        data_root: folder with the corpus in it; default: ``ACTCORE_DATA``.
        batch: sequences of the network whose memory is measured; ``None``: by device.
        seeds: of training, in pairs; they are 0, 1, ...
        rounds: of timed passes that count.
        threads: of torch's operators.
        quick: whether everything is small, to show that it works.
        json: the file that results will be written to: finished runs of training are kept beside it.
    """

    parts: Sequence[str]
    named: bool
    device: torch.device
    data_root: Path | None
    batch: int | None
    seeds: int
    rounds: int
    threads: int
    quick: bool
    json: Path | None

    @property
    def recipe(self) -> Recipe:
        """Of training."""
        return Recipe(steps=QUICK_STEPS) if self.quick else Recipe()


def run(options: Options) -> FewBitResults:
    """Runs the parts, with a progress bar on stderr.

    Raises:
        BenchError: there is no such device; a part that was named lacks a library or the corpus; a process failed.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    start = time.perf_counter()
    machine = Machine.here(options.device, options.threads, _PACKAGES)
    results = FewBitResults(machine, options.device.type)
    skipped = []
    with threads(options.threads), progress("fewbit", _steps(options)) as advance:
        for part in options.parts:
            try:
                if part in _LIBRARIES:
                    needs(_LIBRARIES[part])
                results = _RUN[part](options, results, advance)
            except (MissingLibrary, sentences.MissingSentences) as error:
                if options.named:
                    raise
                skipped.append(f"{part}: {error}")
    return replace(results, skipped=skipped, seconds=results.seconds + time.perf_counter() - start)


def _memory(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    shape = memory.QUICK_SHAPE if options.quick else Shape()
    batch = options.batch or (memory.QUICK_BATCH if options.quick else memory.BATCHES[options.device.type])
    peaks: list[Peak] = memory.measure(shape, batch, memory.STEPS, options.threads, options.device, advance)
    network = f"RoBERTa, {shape}, {ATTENTION} attention, dropout {DROPOUT:g}, float32"
    return replace(results, network=network, batch=batch, peaks=peaks)


def _training(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    recipe = options.recipe
    data = sentences.load(recipe.vocabulary, recipe.length, options.data_root)
    unfinished = Unfinished(options.json, recipe.numbers(), results.machine)
    runs: list[BertRun] = []
    earlier = 0.0  # seconds of runs that are taken up
    for kind, seed in training.runs(options.seeds):
        found = unfinished.find(kind, seed)
        if found is None:
            made = training.train(kind, seed, data, recipe, partial(advance, f"{kind}, seed {seed}"))
            found = replace(made, commit=results.machine.commit)
            unfinished.add(found)
        else:
            print(f"{kind}, seed {seed}: taken from {unfinished.file}", file=sys.stderr)
            earlier += found.seconds
        runs.append(found)
    entropy = training.held_out(data, recipe).entropy()
    seconds = results.seconds + earlier
    return replace(results, data=str(data), recipe=dict(recipe.numbers()), entropy=entropy, runs=runs, seconds=seconds)


def _time(options: Options, results: FewBitResults, advance: Callable[[str], None]) -> FewBitResults:
    elements = step_time.QUICK_ELEMENTS if options.quick else step_time.ELEMENTS
    rows = step_time.QUICK_ROWS if options.quick else step_time.ROWS
    times: list[Times] = [
        *step_time.activations(elements, options.rounds, options.device, advance),
        *step_time.linear(rows, options.rounds, options.device, advance),
    ]
    return replace(results, times=times)


_RUN = {"memory": _memory, "training": _training, "time": _time}


def _steps(options: Options) -> int:
    """How often a run says that it is a step further."""
    steps = {
        "memory": len(WAYS),
        "training": len(training.runs(options.seeds)) * training.strides(options.recipe),
        "time": len(FUNCTIONS) + 1,
    }
    return sum(steps[part] for part in options.parts)
