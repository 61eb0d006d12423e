"""``python -m bench fewbit``: its options, and what is run."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import torch

from bench.errors import MissingLibrary
from bench.models.data import mrpc as sentences
from bench.models.data.mrpc import Sentences
from bench.models.masked_bert import Recipe
from bench.models.subject import needs
from bench.results.record import Record
from bench.runner.child import in_child
from bench.runner.command import Bench, Options, positive
from bench.runner.run import Run, begun
from bench.suites.fewbit import cell, training
from bench.suites.fewbit.entries import KIND, BertRun, Times
from bench.suites.fewbit.report import REPORT
from bench.ways.roberta import WAYS, Exchange, Shape
from integrations.fewbit import FUNCTIONS

PARTS = ("memory", "grid", "training", "time")
QUICK_SEEDS = 1
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
    going.measure(cell.peaks(shape, batch), lambda one: _peak(one, WAYS[one.way], shape, asked), name="memory")


def _grid(going: Run, asked: argparse.Namespace) -> None:
    shape = _shape(asked)
    wanted = cell.cells(shape, _batch(asked), asked.quick)
    going.measure(wanted, lambda one: _peak(one, Exchange(one.bits, one.ratio), shape, asked), name="grid")


def _peak(entry: cell.Measured, way: Exchange, shape: Shape, asked: argparse.Namespace) -> cell.Measured:
    options = {"batch": _batch(asked), "steps": cell.STEPS, "device": asked.device, "threads": asked.threads}
    return in_child(cell.measure_peak, entry, way=asdict(way), shape=asdict(shape), **options)


def _shape(asked: argparse.Namespace) -> Shape:
    shape = cell.QUICK_SHAPE if asked.quick else Shape()
    return shape if asked.layers is None else replace(shape, layers=asked.layers)


def _batch(asked: argparse.Namespace) -> int:
    batch: int = asked.batch or (cell.QUICK_BATCH if asked.quick else cell.BATCHES[asked.device])
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
    going.measure(wanted, lambda one: training.train(one.kind, one.seed, data, recipe), name="training")


def _time(going: Run, asked: argparse.Namespace) -> None:
    device = torch.device(asked.device)
    rounds: int = asked.rounds
    elements = cell.QUICK_ELEMENTS if asked.quick else cell.ELEMENTS
    rows = cell.QUICK_ROWS if asked.quick else cell.ROWS

    def lacks(one: Times) -> bool:
        return len(one.seconds) < rounds

    activations = [Times(name, "activation", elements) for name in FUNCTIONS]
    going.measure(
        activations, lambda one: cell.activation(one.name, elements, rounds, device), name="time", lacks=lacks
    )
    layers = [Times(name, "linear") for name in cell.SKETCHES]
    going.measure_together([layers], lambda _: cell.linear(rows, rounds, device), name="linear", lacks=lacks)


_RUN = {"memory": _memory, "grid": _grid, "time": _time}


def options(add: Options) -> None:
    """Those of the command."""
    add.part(PARTS, words="default: all; parts without their library or data are skipped")
    add.data_root(f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA")
    batches = ", ".join(f"{batch} on {device}" for device, batch in cell.BATCHES.items())
    add.add("--batch", type=positive, help=f"batch size of the parts memory and grid; default: {batches}")
    add.add("--layers", type=positive, help="number of layers of the parts memory and grid; default: RoBERTa-base's 12")
    add.number("--seeds", "number of paired training seeds", default=training.SEEDS, quick=QUICK_SEEDS)
    add.number("--rounds", "number of timed rounds", default=cell.ROUNDS, quick=cell.QUICK_ROUNDS)
    add.quick(f"small networks, {QUICK_SEEDS} seed, {QUICK_STEPS} steps, {cell.QUICK_ROUNDS} rounds")
    add.files()


BENCH = Bench(KIND, "few-bit activations and randomized linear layers", options, run, REPORT)
