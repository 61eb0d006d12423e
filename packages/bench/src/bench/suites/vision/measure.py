"""A run of ``python -m bench vision``: the parts that were asked for, one after another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from bench.models.data import image_folder as folder
from bench.models.data import images
from bench.models.data.images import Images
from bench.models.image_models import MODELS
from bench.models.networks import resnet50
from bench.results.record import Record
from bench.runner.memory import PLAIN, Memory
from bench.runner.progress import progress
from bench.runner.run import Run, begun
from bench.suites.vision import memory, step_time, training, variance
from bench.suites.vision import tasks as tasking
from bench.suites.vision.compression import cell as compression_cell
from bench.suites.vision.compression import measure as compressing
from bench.suites.vision.compression.cell import Settings
from bench.suites.vision.dense import cell as dense_cell
from bench.suites.vision.dense import measure as dense
from bench.suites.vision.results import FULL, KIND, Ablated, StepTimes, Variance, VisionCurve
from bench.suites.vision.tasks import Task

PARTS = ("compression", "dense", "memory", "training", "variance", "ablation", "time")
LEVELS = ("L1", "L2", "L3")  # of memory and time
TRAINED = ("Q-layers L3",)
VARIANCES = ("L2", "L3")
SEEDS, EPOCHS, REPEATS, ROUNDS = 10, 3, 10, 9
QUICK_SEEDS, QUICK_EPOCHS, QUICK_REPEATS, QUICK_ROUNDS = 3, 1, 4, 3

_WITHOUT_IMAGES = {"compression", "dense", "memory"}


def run(asked: argparse.Namespace) -> Record:
    """Runs the parts, with a progress bar each on stderr, each entry written when it is found.

    Raises:
        BenchError: the images cannot be used; the file holds other results.
    """
    going = begun(KIND, asked)
    data: Images | None = None
    tasks: list[Task] = []
    if asked.dataset == folder.DATASET:
        tasks = _on_folder(going, asked)
    elif set(asked.parts) - _WITHOUT_IMAGES:
        data = images.load(asked.dataset, asked.data_root, tell=lambda line: print(line, file=sys.stderr))
        tasks = [tasking.on_images(data)] if "training" in asked.parts else []
        going.set(data=str(data), recipe=_recipe(asked, tasks))
    settings = Settings(asked.device, asked.threads, asked.seed, asked.memory_limit)
    if "compression" in asked.parts:
        _compression(going, asked, settings)
    if "dense" in asked.parts:
        _dense(going, asked, settings)
    if "memory" in asked.parts:
        _memory(going, asked)
    for task in tasks:
        _training(going, task, asked)
    if data is not None:
        _with_images(going, data, asked)
    return going.record


def _compression(going: Run, asked: argparse.Namespace, settings: Settings) -> None:
    names = going.present(asked.compressed.models, compressing.require, "compression of ")
    wanted = [cell for cell in asked.compressed.cells(asked.device) if cell.model in names]
    going.measure(
        wanted,
        lambda cell: compression_cell.measure(cell, settings, compression_cell.measure_here),
        name="compression",
    )


def _dense(going: Run, asked: argparse.Namespace, settings: Settings) -> None:
    if not going.present(["dense"], dense.require):
        return
    wanted = asked.dense.cells(asked.device)
    going.measure(wanted, lambda cell: compression_cell.measure(cell, settings, dense_cell.measure_here), name="dense")


def _on_folder(going: Run, asked: argparse.Namespace) -> list[Task]:
    """What is trained on the folder's images.

    Raises:
        BenchError: the folder cannot be used.
    """
    found = folder.load(asked.data_root, asked.compressed.size, asked.workers)
    batches = {name: asked.images or MODELS[name].batches[asked.device] for name in asked.trained}
    tasks = [tasking.on_folder(name, found, batch) for name, batch in batches.items()]
    going.set(data=str(found), recipe=_recipe(asked, tasks))
    return tasks


def _training(going: Run, task: Task, asked: argparse.Namespace) -> None:
    """Each seed at full precision and in each way. A run that fails is recorded, and the rest goes on."""
    device = torch.device("cpu" if task.model == tasking.SMALL else asked.device)
    wanted = [
        VisionCurve(way, seed, model=task.model) for seed in range(asked.seeds) for way in (FULL, *asked.trained_ways)
    ]
    with progress("training", asked.epochs * sum(not going.has(one) for one in wanted)) as advance:
        going.measure(
            wanted,
            lambda one: training.train(task, one.level, one.seed, asked.epochs, lambda: advance(one.label), device),
            advance=lambda _: None,
        )


def _memory(going: Run, asked: argparse.Namespace) -> None:
    if not going.present(["memory"], lambda _: resnet50(1)):
        return
    wanted = [Memory(memory.MODEL, level) for level in (PLAIN, *LEVELS)]
    going.measure_together([wanted], lambda _: memory.measure(LEVELS, asked.threads), name="memory")


def _with_images(going: Run, data: Images, asked: argparse.Namespace) -> None:
    """The parts that need images, but for training."""
    if {"variance", "ablation"} & set(asked.parts):
        model = variance.trained(data, variance.STEPS)
        if "variance" in asked.parts:
            levels = [Variance(level) for level in VARIANCES]
            going.measure(levels, lambda one: variance.measure(model, one.name, data, asked.repeats), name="variance")
        if "ablation" in asked.parts:
            steps = [Ablated(step) for step in variance.ablation()]
            going.measure(steps, lambda one: variance.ablate(model, one.name, data, asked.repeats), name="ablation")
    if "time" in asked.parts:
        going.measure(
            [StepTimes(order) for order in step_time.FORMATS],
            lambda one: step_time.measure(one.order, LEVELS, data, asked.rounds),
            name="time",
            lacks=lambda one: len(one.plain_seconds) < asked.rounds,
        )


def _recipe(asked: argparse.Namespace, tasks: Sequence[Task]) -> dict[str, float]:
    recipe: dict[str, float] = {}
    for task in tasks:
        of = "" if task.model == tasking.SMALL else f" of {task.model}"
        recipe |= {"epochs": asked.epochs, **{f"{name}{of}": value for name, value in task.recipe.items()}}
    if {"variance", "ablation"} & set(asked.parts):
        recipe |= {"steps before variances": variance.STEPS, "batch of variances": variance.BATCH}
    return recipe
