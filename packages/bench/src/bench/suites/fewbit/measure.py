"""A run of ``python -m bench fewbit``: the parts that were asked for, one after another."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import torch

from bench.errors import MissingLibrary
from bench.models.data import mrpc as sentences
from bench.models.data.mrpc import Sentences
from bench.models.libraries import needs
from bench.models.masked_bert import Recipe
from bench.results.record import Record
from bench.runner.child import in_child
from bench.runner.progress import progress
from bench.runner.run import Run, begun
from bench.suites.fewbit import memory, step_time, training
from bench.suites.fewbit.results import KIND, BertRun, Times
from bench.ways.roberta import WAYS, Exchange, Shape
from integrations.fewbit import FUNCTIONS

PARTS = ("memory", "grid", "training", "time")
SEEDS, QUICK_SEEDS = 5, 1
QUICK_STEPS = 100

_LIBRARIES = {"memory": "transformers", "grid": "transformers", "training": "transformers"}


def run(asked: argparse.Namespace) -> Record:
    """Runs the parts, with a progress bar each on stderr. Training is on the CPU: its network is too small for more.

    Raises:
        BenchError: a part that was named lacks a library or the corpus; the file holds other results.
    """
    going = begun(KIND, asked)
    data = _sentences(going, asked) if "training" in asked.parts else None
    for part in asked.parts:
        try:
            if part in _LIBRARIES:
                needs(_LIBRARIES[part])
            if part == "training":
                _training(going, asked, data or _loaded(asked))
            else:
                _RUN[part](going, asked)
        except (MissingLibrary, sentences.MissingSentences) as error:
            if "parts" in asked.said:
                raise
            going.skip(f"{part}: {error}")
    return going.record


def _memory(going: Run, asked: argparse.Namespace) -> None:
    shape, batch = _shape(asked), _batch(asked)
    going.measure(memory.peaks(shape, batch), lambda one: _peak(one, WAYS[one.way], shape, asked), name="memory")


def _grid(going: Run, asked: argparse.Namespace) -> None:
    shape = _shape(asked)
    wanted = memory.cells(shape, _batch(asked), asked.quick)
    going.measure(wanted, lambda one: _peak(one, Exchange(one.bits, one.ratio), shape, asked), name="grid")


def _peak(entry: memory.Measured, way: Exchange, shape: Shape, asked: argparse.Namespace) -> memory.Measured:
    options = {"batch": _batch(asked), "steps": memory.STEPS, "device": asked.device, "threads": asked.threads}
    return in_child(memory.measure, entry, way=asdict(way), shape=asdict(shape), **options)


def _shape(asked: argparse.Namespace) -> Shape:
    shape = memory.QUICK_SHAPE if asked.quick else Shape()
    return shape if asked.layers is None else replace(shape, layers=asked.layers)


def _batch(asked: argparse.Namespace) -> int:
    batch: int = asked.batch or (memory.QUICK_BATCH if asked.quick else memory.BATCHES[asked.device])
    return batch


def _sentences(going: Run, asked: argparse.Namespace) -> Sentences | None:
    """Those to train on, found before any part is run; ``None`` where there are none, which the part says.

    Raises:
        BenchError: the file has runs of others, or of another recipe: they are no pairs of those that are to come.
    """
    try:
        data = _loaded(asked)
        entropy = training.held_out(data, _recipe(asked)).entropy()
    except sentences.MissingSentences:
        return None
    going.set(data=str(data), recipe=dict(_recipe(asked).numbers()), entropy=entropy)
    return data


def _loaded(asked: argparse.Namespace) -> Sentences:
    recipe = _recipe(asked)
    return sentences.load(recipe.vocabulary, recipe.length, asked.data_root)


def _recipe(asked: argparse.Namespace) -> Recipe:
    return Recipe(steps=QUICK_STEPS) if asked.quick else Recipe()


def _training(going: Run, asked: argparse.Namespace, data: Sentences) -> None:
    recipe = _recipe(asked)
    wanted = [BertRun(kind, seed) for kind, seed in training.runs(asked.seeds)]
    with progress("training", len(wanted) * training.strides(recipe)) as advance:
        going.measure(
            wanted,
            lambda one: training.train(
                one.kind, one.seed, data, recipe, lambda: advance(f"{one.kind}, seed {one.seed}")
            ),
            advance=lambda _: None,
        )


def _time(going: Run, asked: argparse.Namespace) -> None:
    device = torch.device(asked.device)
    rounds: int = asked.rounds
    elements = step_time.QUICK_ELEMENTS if asked.quick else step_time.ELEMENTS
    rows = step_time.QUICK_ROWS if asked.quick else step_time.ROWS

    def lacks(one: Times) -> bool:
        return len(one.seconds) < rounds

    activations = [Times(name, "activation", elements) for name in FUNCTIONS]
    going.measure(
        activations, lambda one: step_time.activation(one.name, elements, rounds, device), name="time", lacks=lacks
    )
    layers = [Times(name, "linear") for name in step_time.SKETCHES]
    going.measure_together([layers], lambda _: step_time.linear(rows, rounds, device), name="linear", lacks=lacks)


_RUN = {"memory": _memory, "grid": _grid, "time": _time}
