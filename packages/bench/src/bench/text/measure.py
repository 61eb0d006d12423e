"""A run of ``python -m bench text``: cell by cell, each written as it is found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import records
from bench.errors import BenchError, MissingLibrary, reason
from bench.kernels.clock import threads
from bench.machine import Machine
from bench.networks import needs
from bench.progress import progress
from bench.systems.ways import DoesNotApply
from bench.taken_up import commit_of, taken_up
from bench.text import cell as cells
from bench.text import encoding, models, texts, training
from bench.text.encoding import Encoded
from bench.text.facts import facts_of
from bench.text.models import NETWORKS
from bench.text.results import Cell, Run, TextResults
from bench.text.tasks import TASKS
from bench.text.training import Recipe
from bench.text.ways import CONTROL

PARTS = ("accuracy", "memory", "time")
SEEDS, QUICK_SEEDS = 5, 1
ROUNDS, QUICK_ROUNDS = 7, 2
EPOCHS = 10  # as FewBit has
QUICK_STEPS = 30
QUICK_LENGTH, QUICK_BATCH = 32, 16

_PACKAGES = ("torch", "actcore", "actcore-integrations")
_SCRATCH_RATE, _SCRATCH_BATCH = 1e-3, 32


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        parts: of ``PARTS``.
        models: names in ``NETWORKS``, that are trained.
        measured: the same, of which memory and time are measured.
        tasks: names in ``TASKS``, or ``"auto"``.
        ways: names that ``bench.text.ways`` knows.
        device: of networks and sentences.
        data_root: folder with MRPC in it; default: ``ACTCORE_DATA``.
        random_weights: whether networks of the hub are trained from scratch, on words.
        seeds: of training, in pairs; they are 0, 1, ...
        epochs, batch, rate: of training, and ``batch`` of memory and time; ``None``: by network and task.
        rounds: of timed steps.
        threads: of torch's operators.
        quick: whether everything is small, to show that it works.
        json: the file that results are written to, and taken up from.
    """

    parts: Sequence[str]
    models: Sequence[str]
    measured: Sequence[str]
    tasks: Sequence[str]
    ways: Sequence[str]
    device: torch.device
    data_root: Path | None
    random_weights: bool
    seeds: int
    epochs: int | None
    batch: int | None
    rate: float | None
    rounds: int
    threads: int
    quick: bool
    json: Path | None


def run(options: Options) -> TextResults:
    """Measures what the file does not have, with a progress bar on stderr.

    Raises:
        BenchError: there is no such device; the file holds other results; nothing at all could be measured.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    transformers = needs("transformers")
    machine = Machine.here(options.device, options.threads, (*_PACKAGES, "transformers"))
    transformers.utils.logging.set_verbosity_error()  # what it says of heads that are drawn is known
    results = taken_up(
        TextResults(machine, options.device.type),
        options.json,
        _settings,
        "machine, device, number of threads or version of a library",
    )
    results = replace(results, skipped=[])
    with threads(options.threads):
        if "accuracy" in options.parts:
            results = _accuracy(options, results)
        results = _cells(options, results)
    if not (results.runs or results.cells):
        raise BenchError(results.skipped[0])
    return results


def recipe(options: Options, model: str, task: str) -> Recipe:
    """How a network is trained on a task: as FewBit's scripts do from pretrained weights, otherwise faster."""
    words = options.random_weights or not NETWORKS[model].hub
    wanted = TASKS[task]
    return Recipe(
        batch=options.batch or (_SCRATCH_BATCH if words else wanted.batch),
        rate=options.rate or (_SCRATCH_RATE if words else wanted.rate),
        epochs=options.epochs or EPOCHS,
        length=NETWORKS[model].length,
        steps=QUICK_STEPS if options.quick else 0,
        weight_decay=0.01 if words else 0.1,
        words=words,
    )


def _accuracy(options: Options, results: TextResults) -> TextResults:
    loaded: dict[str, texts.Texts] = {}
    for task in options.tasks:
        try:
            found = texts.load(task, options.data_root, partial(print, file=sys.stderr))
            loaded.setdefault(found.task, found)
        except (texts.NotAtHand, MissingLibrary) as error:
            results = _skipped(results, f"{task}: {error}")
    for found in loaded.values():
        for model in options.models:
            try:
                results = _trained(options, results, model, found)
            except (texts.NotAtHand, MissingLibrary) as error:
                results = _skipped(results, f"{found.task} with {model}: {error}")
    return results


def _trained(options: Options, results: TextResults, model: str, found: texts.Texts) -> TextResults:
    known = results.of_task(found.task)
    if known is not None and known.what != found.what:  # such as MRPC of a folder, and GLUE's
        raise BenchError(
            f"{options.json} holds runs on other sentences of {found.task} ({known.what}), not on {found.what}; name "
            "another file, or delete it"
        )
    how = recipe(options, model, found.task)
    left = list(_runs_left(options, results, model, found.task, how))
    if not left:
        return results
    encoded, build = _prepared(model, found, how)
    others = [facts for facts in results.facts if facts.task != found.task]
    results = replace(results, facts=[*others, facts_of(found)])
    with progress(f"{found.task}, {model}", len(left)) as advance:
        for blank in left:
            start = time.perf_counter()
            try:
                run = training.train(blank, build, TASKS[found.task], encoded, how, options.device)
            except DoesNotApply as error:
                run = replace(blank, does_not_apply=str(error))
            except Exception as error:  # whatever one run fails with, others are to be trained
                run = replace(blank, failure=reason(error))
            run = replace(run, commit=commit_of(results.machine))
            others_run = [one for one in results.runs if _key(one) != _key(run)]
            results = _saved(options, replace(results, runs=[*others_run, run]), start)
            advance(f"{run.task}, {run.model}, {run.way}, seed {run.seed}")
    return results


def _runs_left(options: Options, results: TextResults, model: str, task: str, how: Recipe) -> Iterator[Run]:
    for one in results.runs:
        if (one.model, one.task) == (model, task) and one.recipe != how.settings():
            raise BenchError(
                f"{options.json} holds runs of {model} on {task} that were trained otherwise ({one.recipe}); name "
                "another file, or delete it"
            )
    for seed in range(options.seeds):
        for way in options.ways:
            found = results.run(model, task, way, seed)
            if found is None or found.failure:
                yield Run(model, task, way, seed, how.settings())


def _prepared(model: str, found: texts.Texts, how: Recipe) -> tuple[Encoded, Callable[[], nn.Module]]:
    network, classes = NETWORKS[model], TASKS[found.task].classes
    if how.words:
        encoded = encoding.by_words(found, classes, network.vocabulary, how.length, not network.roberta)
        return encoded, partial(models.from_scratch, network, classes, encoded.vocabulary)
    encoded = encoding.by_tokenizer(found, classes, models.tokenizer(network), how.length)
    models.pretrained(network, classes)  # what is not there is found before the first run
    return encoded, partial(models.pretrained, network, classes)


def _cells(options: Options, results: TextResults) -> TextResults:
    left = list(_cells_left(options, results))
    if not left:
        return results
    with progress("memory and time", len(left)) as advance:
        for blank, memory, rounds in left:
            start = time.perf_counter()
            found = cells.measure(replace(blank, failure=""), memory, rounds, options.device.type, options.threads)
            found = replace(found, commit=commit_of(results.machine))
            others = [one for one in results.cells if _place(one) != _place(found)]
            results = _saved(options, replace(results, cells=[*others, found]), start)
            advance(f"{found.model}, {found.way}")
    return results


def _cells_left(options: Options, results: TextResults) -> Iterator[tuple[Cell, bool, int]]:
    """What lacks bytes or times: each with whether it lacks bytes, and the rounds of times that it lacks."""
    for model in options.measured:
        network = NETWORKS[model]
        batch = options.batch or (QUICK_BATCH if options.quick else network.batch(options.device))
        length = QUICK_LENGTH if options.quick else network.length
        for way in (way for way in options.ways if way != CONTROL):  # which takes what plain does
            blank = Cell(model, way, batch, length)
            found = next((one for one in results.cells if _place(one) == _place(blank)), blank)
            known = found.live_bytes is not None or bool(found.not_measured)
            memory = "memory" in options.parts and not known
            rounds = options.rounds if "time" in options.parts and len(found.seconds) < options.rounds else 0
            if (memory or rounds) and not found.does_not_apply:
                yield found, memory, rounds


def _saved(options: Options, results: TextResults, start: float) -> TextResults:
    results = replace(results, seconds=results.seconds + time.perf_counter() - start)
    if options.json is not None:
        records.save(results, options.json)
    return results


def _skipped(results: TextResults, why: str) -> TextResults:
    return replace(results, skipped=[*results.skipped, why])


def _key(run: Run) -> tuple[Any, ...]:
    return run.model, run.task, run.way, run.seed


def _place(cell: Cell) -> tuple[Any, ...]:
    return cell.model, cell.way, cell.batch, cell.length


def _settings(results: TextResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.device
