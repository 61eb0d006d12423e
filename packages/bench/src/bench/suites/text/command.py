"""``python -m bench text``: its options, and what is run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from bench.errors import BenchError, MissingLibrary
from bench.models import glue_networks as models
from bench.models.data import encoding, glue
from bench.models.data import mrpc as sentences
from bench.models.data.encoding import Encoded
from bench.models.data.glue import AUTO, GENERATED, TASKS
from bench.models.glue_networks import NETWORKS
from bench.models.subject import needs
from bench.results.record import Record
from bench.runner.child import in_child
from bench.runner.command import Bench, Options, positive
from bench.runner.run import Run as Going
from bench.runner.run import begun
from bench.suites.text import training
from bench.suites.text.cell import measure
from bench.suites.text.entries import KIND, Cell, Facts, Run
from bench.suites.text.report import REPORT
from bench.suites.text.training import Recipe, task_facts
from bench.ways import text as ways
from bench.ways.general import PLAIN
from bench.ways.text import CONTROL

PARTS = ("accuracy", "memory", "time")
SEEDS, QUICK_SEEDS = 5, 1
ROUNDS, QUICK_ROUNDS = 7, 2
EPOCHS = 10  # as FewBit has
QUICK_STEPS = 30
QUICK_LENGTH, QUICK_BATCH = 32, 16

_SCRATCH_RATE, _SCRATCH_BATCH = 1e-3, 32


def run(asked: argparse.Namespace) -> Record:
    """Measures what the file does not have, with a progress bar on stderr.

    Raises:
        BenchError: the file holds other results; nothing at all could be measured.
    """
    transformers = needs("transformers")
    transformers.utils.logging.set_verbosity_error()  # what it says of heads that are drawn is known
    going = begun(KIND, asked)
    if "accuracy" in asked.parts:
        _accuracy(going, asked)
    if {"memory", "time"} & set(asked.parts):
        _steps(going, asked)
    if not going.record.of(Run) and not going.record.of(Cell):
        raise BenchError(going.record.skipped[0])
    return going.record


def recipe(asked: argparse.Namespace, model: str, task: str) -> Recipe:
    """How a network is trained on a task: as FewBit's scripts do from pretrained weights, otherwise faster."""
    words = asked.random_weights or not NETWORKS[model].hub
    wanted = TASKS[task]
    return Recipe(
        batch=asked.batch or (_SCRATCH_BATCH if words else wanted.batch),
        rate=asked.rate or (_SCRATCH_RATE if words else wanted.rate),
        epochs=asked.epochs or EPOCHS,
        length=NETWORKS[model].length,
        steps=QUICK_STEPS if asked.quick else 0,
        weight_decay=0.01 if words else 0.1,
        words=words,
    )


def _accuracy(going: Going, asked: argparse.Namespace) -> None:
    loaded: dict[str, glue.Texts] = {}
    for task in asked.tasks:
        try:
            found = glue.load(task, asked.data_root, partial(print, file=sys.stderr))
            loaded.setdefault(found.task, found)
        except (glue.NotAtHand, MissingLibrary) as error:
            going.skip(f"{task}: {error}")
    for found in loaded.values():
        for model in asked.trained:
            try:
                _train(going, asked, model, found)
            except (glue.NotAtHand, MissingLibrary) as error:
                going.skip(f"{found.task} with {model}: {error}")


def _train(going: Going, asked: argparse.Namespace, model: str, found: glue.Texts) -> None:
    how = recipe(asked, model, found.task)
    _require_the_same(going.record, asked, model, found, how)
    wanted = [Run(model, found.task, way, seed, how.settings()) for seed in range(asked.seeds) for way in asked.ways]
    if all(map(going.has, wanted)):
        return
    encoded, build = _prepared(model, found, how)
    going.add(task_facts(found))
    device = torch.device(asked.device)
    going.measure(
        wanted,
        lambda blank: training.train(blank, build, TASKS[found.task], encoded, how, device),
        name=f"{found.task}, {model}",
    )


def _require_the_same(record: Record, asked: argparse.Namespace, model: str, found: glue.Texts, how: Recipe) -> None:
    """Runs of other sentences or another recipe are no pairs of those that are to come.

    Raises:
        BenchError: the file has such.
    """
    known = record.find(Facts, task=found.task)
    if known is not None and known.what != found.what:  # such as MRPC of a folder, and GLUE's
        raise BenchError(
            f"{asked.json} holds runs on other sentences of {found.task} ({known.what}), not on {found.what}; name "
            "another file, or delete it"
        )
    for one in record.of(Run, model=model, task=found.task):
        if one.recipe != how.settings():
            raise BenchError(
                f"{asked.json} holds runs of {model} on {found.task} with other settings ({one.recipe}); name "
                "another file, or delete it"
            )


def _prepared(model: str, found: glue.Texts, how: Recipe) -> tuple[Encoded, Callable[[], nn.Module]]:
    network, classes = NETWORKS[model], TASKS[found.task].classes
    if how.words:
        encoded = encoding.by_words(found, classes, network.vocabulary, how.length, not network.roberta)
        return encoded, partial(models.from_scratch, network, classes, encoded.vocabulary)
    encoded = encoding.by_tokenizer(found, classes, models.tokenizer(network), how.length)
    models.pretrained(network, classes)  # what is not there is found before the first run
    return encoded, partial(models.pretrained, network, classes)


def _steps(going: Going, asked: argparse.Namespace) -> None:
    """Memory and time, whatever a cell lacks of them."""

    def lacks(cell: Cell) -> tuple[bool, int]:
        known = cell.live_bytes is not None or bool(cell.not_measured)
        memory = "memory" in asked.parts and not known
        return memory, asked.rounds if "time" in asked.parts and len(cell.seconds) < asked.rounds else 0

    def measured(cell: Cell) -> Cell:
        memory, rounds = lacks(cell)
        return in_child(measure, cell, memory=memory, rounds=rounds, device=asked.device, threads=asked.threads)

    wanted = []
    for model in asked.measured:
        network = NETWORKS[model]
        batch = asked.batch or (QUICK_BATCH if asked.quick else network.batch(torch.device(asked.device)))
        length = QUICK_LENGTH if asked.quick else network.length
        ways = [way for way in asked.ways if way != CONTROL]  # which takes what plain does
        wanted += [Cell(model, way, batch, length) for way in ways]
    going.measure(wanted, measured, name="memory and time", lacks=lambda cell: any(lacks(cell)))


TRAINED, MEASURED = ("tiny",), ("base",)  # networks, where none is named


def options(add: Options) -> None:
    """Those of the command."""
    add.part(PARTS)
    words = f"task, repeatable; {AUTO}: MRPC from a folder, otherwise {GENERATED}; default: {AUTO} and {GENERATED}"
    add.many("--task", (AUTO, *TASKS), words, default=(AUTO, GENERATED), quick=(AUTO,))
    words = (
        f"network, repeatable; default: {', '.join(TRAINED)} for accuracy, {', '.join(MEASURED)} for memory and time; "
        "the others are fine-tuned from the weights of the hub"
    )
    add.many("--model", NETWORKS, words)
    words = f"way of training, repeatable: {ways.FORMS}; {PLAIN} is always run; default: {', '.join(ways.DEFAULT)}"
    add.many("--way", None, words, metavar="NAME", kind=ways.way)
    words = "the ways of FewBit's tables: GELU in 1 to 4 bits, each kind of sketch at 50, 20 and 10 %%"
    add.add("--fewbit", action="store_true", help=words)
    words = "train large networks from scratch with a vocabulary of words, without the hub"
    add.add("--random-weights", action="store_true", help=words)
    add.data_root(f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA")
    add.number("--seeds", "number of paired training seeds", default=SEEDS, quick=QUICK_SEEDS)
    add.add("--epochs", type=positive, help=f"number of training epochs; default: {EPOCHS}")
    add.add("--batch", type=positive, help="sentences in a batch, in all parts; default: by network and task")
    add.add("--rate", type=_rate, help="peak learning rate of training; default: by network and task")
    add.number("--rounds", "number of rounds of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.quick(f"{', '.join(ways.QUICK)}; {QUICK_SEEDS} seed, {QUICK_STEPS} steps, {QUICK_ROUNDS} rounds")
    add.files()


def settle(asked: argparse.Namespace) -> None:
    """Finds the networks that are trained and those that are measured, and the ways."""
    asked.trained = asked.models or list(TRAINED)
    asked.measured = asked.models or list(TRAINED if asked.quick else MEASURED)
    named = [*asked.ways, *(ways.FEWBIT if asked.fewbit else ())]
    asked.ways = list(dict.fromkeys([PLAIN, *(named or (ways.QUICK if asked.quick else ways.DEFAULT))]))


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1 such as 2e-5, got {text!r}")
    return value


WHAT = "BERT on GLUE's tasks: accuracy, memory and time of every way"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle)
