"""The main job: GNNs at full precision and with compressed activations, on one graph, as one table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import data, models, training
from bench.errors import BenchError
from bench.gnn_memory import measure
from bench.kernels import time_kernels
from bench.machine import Machine
from bench.results import Results
from bench.summary import REFERENCE

KERNEL_THREADS = 2


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        models: names of ``bench.models.MODELS``.
        levels: names of ``integrations.LEVELS``; full precision, ``"L0"``, is always run, too.
        dataset, data_root: as for ``bench.data.load``.
        device: to train on.
        seeds: how many; they are 0, 1, ...
        epochs: of each run.
        threads: of torch's operators.
        with_kernels: whether the kernels are timed, too.
    """

    models: Sequence[str]
    levels: Sequence[str]
    dataset: str
    data_root: Path | None
    device: torch.device
    seeds: int
    epochs: int
    threads: int
    with_kernels: bool


def run(options: Options) -> Results:
    """Trains, measures memory and times the kernels, with a progress bar on stderr.

    Raises:
        BenchError: the dataset cannot be used, or there is no such device.
    """
    if options.device.type == "cuda":
        if not torch.cuda.is_available():
            raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
        # What cuBLAS needs to be deterministic; it reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(options.threads)
    graph = data.load(options.dataset, options.data_root, tell=lambda line: print(line, file=sys.stderr))
    dataset = graph.name.lower()
    levels = [None, *(level for level in options.levels if level != REFERENCE)]

    curves, seconds = _train(options, graph.to(options.device), levels)
    errors = Console(stderr=True)
    with errors.status("measuring memory in a process of its own"):
        memories = measure(options.models, levels, dataset, options.data_root, options.device, options.threads)
    with errors.status("timing the kernels"):
        kernels = time_kernels(options.device, KERNEL_THREADS) if options.with_kernels else []
    return Results(
        machine=Machine.here(options.device, options.threads),
        dataset=graph.name,
        data=str(graph),
        recipe={
            "layers": models.LAYERS,
            "hidden": models.HIDDEN,
            "dropout": models.DROPOUT,
            "Adam lr": training.LEARNING_RATE,
            "weight decay": training.WEIGHT_DECAY,
            "epochs": options.epochs,
            "final loss over epochs": min(training.FINAL, options.epochs),
        },
        curves=curves,
        memories=memories,
        kernels=kernels,
        seconds=seconds,
    )


def _train(options: Options, graph: data.Graph, levels: Sequence[str | None]) -> tuple[list[training.Curve], float]:
    start = time.perf_counter()
    curves: list[training.Curve] = []
    with (
        training.deterministic(options.device),
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as progress,
    ):
        total = len(options.models) * len(levels) * options.seeds * options.epochs
        task = progress.add_task(graph.name, total=total)

        def advance(what: str, epochs: int) -> None:
            progress.update(task, advance=epochs, description=f"{graph.name}: {what}")

        # Seeds outermost: an interrupted or a slow hour touches all models alike.
        for seed in range(options.seeds):
            for model in options.models:
                curves += training.train_in_turn(model, levels, seed, graph, options.epochs, advance)
                if not progress.console.is_terminal:
                    minutes = (time.perf_counter() - start) / 60
                    progress.console.print(f"{model}, seed {seed + 1} of {options.seeds}: {minutes:.1f} minutes")
    order = {model: place for place, model in enumerate(options.models)}
    return sorted(curves, key=lambda curve: order[curve.model]), time.perf_counter() - start
