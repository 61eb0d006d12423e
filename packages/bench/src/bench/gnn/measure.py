"""A run of ``python -m bench gnn``: one graph, several models and levels; each curve is written as it is found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import records
from bench.arguments import THREADS
from bench.errors import BenchError
from bench.gnn import datasets, memory, training
from bench.gnn.graph import Graph
from bench.gnn.models import MODELS, NAMES, WEIGHT_DECAY
from bench.gnn.recipe import DEFAULT, Recipe
from bench.gnn.results import Results
from bench.gnn.sampling import Walks
from bench.gnn.summary import REFERENCE, rows
from bench.kernels import time_kernels
from bench.machine import Machine
from bench.progress import progress
from bench.taken_up import commit_of, taken_up
from integrations import LEVELS

PARTS = ("train", "memory", "kernels")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        parts: names in ``PARTS``.
        models: names of ``bench.gnn.models.MODELS``.
        levels: names of ``integrations.LEVELS``; full precision, ``"L0"``, is always run, too.
        dataset, data_root: as for ``bench.gnn.datasets.load``.
        device: to train on.
        seeds: how many; they are 0, 1, ...
        epochs: of each run.
        threads: of torch's operators.
        recipe: how networks are built and trained.
        json: the file that results are written to.
        anew: whether what the file has is left alone, and written over.
    """

    parts: Sequence[str]
    models: Sequence[str]
    levels: Sequence[str]
    dataset: str
    data_root: Path | None
    device: torch.device
    seeds: int
    epochs: int
    threads: int
    recipe: Recipe = DEFAULT
    json: Path | None = None
    anew: bool = False


def run(options: Options) -> Results:
    """Trains, measures memory and times the kernels where the file has no results yet, with progress bars on stderr.

    Raises:
        BenchError: the dataset cannot be used, there is no such device, the recipe has no sense, or the file holds
            other results.
    """
    if options.device.type == "cuda":
        if not torch.cuda.is_available():
            raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
        # What cuBLAS needs to be deterministic; it reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(options.threads)
    graph = datasets.load(options.dataset, options.data_root, tell=lambda line: print(line, file=sys.stderr))
    _require_sense(options, graph)
    blank = Results(
        machine=Machine.here(options.device, options.threads),
        dataset=graph.name,
        data=str(graph),
        recipe=_recipe(options),
        device=options.device.type,
        measure=graph.measure,
    )
    named = "machine, data, recipe, number of epochs or threads, or version of a library"
    results = taken_up(blank, None if options.anew else options.json, _settings, named)
    if "train" in options.parts:
        results = _train(options, graph.to(options.device), results)
    if "memory" in options.parts:
        results = _measure_memory(options, graph.name.lower(), results)
    if "kernels" in options.parts and not results.kernels:
        with Console(stderr=True).status("timing the kernels"):
            results = replace(results, kernels=time_kernels(options.device, THREADS))
    return results


def _recipe(options: Options) -> dict[str, float | str]:
    return {
        **options.recipe.words(),
        "Adam lr": training.LEARNING_RATE,
        "weight decay": WEIGHT_DECAY,
        "epochs": options.epochs,
        "final loss over epochs": min(training.FINAL, options.epochs),
    }


def _require_sense(options: Options, graph: Graph) -> None:
    """Before anything is measured, that every network and subgraph can be made."""
    with torch.device("meta"):
        for model in options.models:
            MODELS[model](graph.x.shape[1], graph.classes, options.recipe)
    if options.recipe.sample is not None:
        Walks(graph, options.recipe.sample)


def _settings(results: Results) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.data, results.recipe, results.device


def _levels(options: Options) -> list[str]:
    """With full precision, which comes first."""
    return [REFERENCE, *(level for level in options.levels if level != REFERENCE)]


def _train(options: Options, graph: Graph, results: Results) -> Results:
    done = {(curve.model, curve.level, curve.seed) for curve in results.curves if not curve.failure}
    # Seeds outermost: an interrupted or a slow hour touches all models alike.
    left = {
        (seed, model): missing
        for seed in range(options.seeds)
        for model in options.models
        if (missing := [level for level in _levels(options) if (model, level, seed) not in done])
    }
    # Full precision is always trained with them: what their time is compared with.
    jobs = {key: list(dict.fromkeys([REFERENCE, *missing])) for key, missing in left.items()}
    with training.deterministic(options.device), _epochs(graph.name, jobs, options.epochs) as bar:
        for (seed, model), levels in jobs.items():
            start = time.perf_counter()
            found = training.train_in_turn(
                model,
                [None if level == REFERENCE else level for level in levels],
                seed,
                graph,
                options.epochs,
                bar.advance,
                options.recipe,
            )
            commit = commit_of(results.machine)
            new = [replace(curve, commit=commit) for curve in found if (model, curve.level, seed) not in done]
            results = replace(
                results,
                curves=_in_order([*results.curves, *new]),
                seconds=results.seconds + time.perf_counter() - start,
            )
            _save(results, options)
            if seed == options.seeds - 1:  # the last of this model
                bar.tell(_accuracies(model, results))
            elif not bar.is_live:
                bar.tell(f"{model}, seed {seed + 1} of {options.seeds}: {results.seconds / 60:.1f} minutes")
    return results


def _accuracies(model: str, results: Results) -> str:
    """A model's row, before the table is there."""
    found = [row for row in rows(results) if row.model == model and row.accuracy is not None]
    each = (f"{'fp32' if row.level == REFERENCE else row.level} {row.accuracy:.1f} %" for row in found)
    return f"{NAMES.get(model, model)}, test {results.measure}: {', '.join(each)}"


def _measure_memory(options: Options, dataset: str, results: Results) -> Results:
    done = {(found.model, found.level) for found in results.memories if found.live_bytes is not None}
    left = {
        model: missing
        for model in options.models
        if (missing := [level for level in _levels(options) if (model, level) not in done])
    }
    with progress(f"memory, {dataset}", len(left)) as advance:
        for model, levels in left.items():
            names = [None if level == REFERENCE else level for level in levels]
            found = memory.measure(
                [model], names, dataset, options.data_root, options.device, options.threads, options.recipe
            )
            commit = commit_of(results.machine)
            new = [replace(one, commit=commit) for one in found]
            known = {(one.model, one.level): one for one in [*results.memories, *new]}
            results = replace(results, memories=sorted(known.values(), key=lambda one: _place(one.model, one.level)))
            _save(results, options)
            advance(f"{model}, memory")
    return results


def _in_order(curves: Sequence[training.Curve]) -> list[training.Curve]:
    """One for each model, level and seed, the last of several."""
    known = {(*_place(curve.model, curve.level), curve.seed): curve for curve in curves}
    return [curve for _, curve in sorted(known.items())]


def _place(model: str, level: str) -> tuple[int, int]:
    return list(MODELS).index(model), list(LEVELS).index(level)


def _save(results: Results, options: Options) -> None:
    if options.json is not None:
        records.save(results, options.json)


class _Bar:
    """Counts epochs on stderr, with a line for each model that is done; where that is no terminal, for each seed."""

    def __init__(self, bar: Progress, name: str, total: int) -> None:
        self._bar, self._name = bar, name
        self._task = bar.add_task(name, total=total)

    def advance(self, what: str, epochs: int) -> None:
        self._bar.update(self._task, advance=epochs, description=f"{self._name}: {what}")

    @property
    def is_live(self) -> bool:
        """Whether somebody sees the bar move."""
        return self._bar.console.is_terminal

    def tell(self, line: str) -> None:
        self._bar.console.print(line, highlight=False)


@contextmanager
def _epochs(name: str, jobs: dict[tuple[int, str], list[str]], epochs: int) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar, name, epochs * sum(len(levels) for levels in jobs.values()))
