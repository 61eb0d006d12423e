"""``python -m bench vision``: its options, and what is run."""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch

from bench.errors import BenchError
from bench.models.data import image_folder as folder
from bench.models.data import images
from bench.models.data.images import Images
from bench.models.dense import DENSE
from bench.models.image_models import MODELS, ORIGINALS, SIZE
from bench.models.networks import resnet50
from bench.models.subject import needs
from bench.results.record import Record
from bench.runner.command import Bench, Options, positive, size
from bench.runner.memory import PLAIN as UNTOUCHED
from bench.runner.memory import Memory
from bench.runner.run import Run, begun
from bench.suites.vision import cell, training, variance
from bench.suites.vision.cell import Settings
from bench.suites.vision.entries import FULL, KIND, Ablated, Cell, DenseCell, StepTimes, Variance, VisionCurve
from bench.suites.vision.report import REPORT
from bench.suites.vision.training import Task
from bench.units import GIB, size_name
from bench.ways.conversions import PLAIN, WAYS

PARTS = ("compression", "dense", "memory", "training", "variance", "ablation", "time")
LEVELS = ("L1", "L2", "L3")  # of memory and time
VARIANCES = ("L2", "L3")
DENSE_WAYS, TRAINED_WAYS = ("L2", "Q-layers L3"), ("Q-layers L3",)
FOLDER_MODEL = "resnet50"  # trained on a folder, by default
MEMORY_LIMIT = 16 * GIB
SEEDS, EPOCHS, REPEATS, ROUNDS = 10, 3, 10, 9
QUICK_SEEDS, QUICK_EPOCHS, QUICK_REPEATS, QUICK_ROUNDS = 3, 1, 4, 3
QUICK_MODELS, QUICK_WAYS, QUICK_BATCH, QUICK_SIZE = ("resnet18",), ("L2.2", "Q-layers L3"), 4, 32
QUICK_DENSE, DENSE_QUICK_BATCH, DENSE_QUICK_SIZE = ("fcn_resnet50",), 1, 96


def options(add: Options) -> None:
    """Those of the command."""
    add.part(PARTS)
    add.add(
        "--dataset",
        default="auto",
        choices=(*images.DATASETS, folder.DATASET),
        help="auto: CIFAR-10's subset from a folder, otherwise digits; imagefolder: train --model on train/ and val/ "
        "in --data-root, in the layout of ImageNet",
    )
    add.data_root(f"folder with {images.FILE}, default: ACTCORE_DATA; or with train/CLASS/ and val/CLASS/")
    add.number("--seeds", "number of paired training seeds", default=SEEDS, quick=QUICK_SEEDS)
    add.number("--epochs", "number of epochs of each training run", default=EPOCHS, quick=QUICK_EPOCHS)
    at_least_two = partial(positive, least=2)
    add.number(
        "--repeats", "number of gradients for each variance", default=REPEATS, quick=QUICK_REPEATS, kind=at_least_two
    )
    add.number("--rounds", "number of rounds of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    words = (
        f"model, repeatable; default: {', '.join(ORIGINALS)} for compression, {', '.join(DENSE)} for dense, "
        f"{FOLDER_MODEL} for training on a folder"
    )
    add.many("--model", (*MODELS, *DENSE), words)
    words = (
        f"way of training, repeatable; default: all of {', '.join(WAYS)} for compression, {', '.join(DENSE_WAYS)} for "
        f"dense, {', '.join(TRAINED_WAYS)} for training"
    )
    add.many("--way", WAYS, words, metavar="WAY")
    words = "batch size of compression, dense and training on a folder; default: by model and device"
    add.add("--batch", type=positive, help=words)
    words = f"image size; default: {SIZE} for compression and a folder, by model and device for dense"
    add.add("--size", type=positive, help=words)
    words = "compression with channels-last images, which CPU convolutions do not copy"
    add.add("--channels-last", action="store_true", help=words)
    words = f"memory limit of the processes of compression and dense on the CPU; default: {size_name(MEMORY_LIMIT)}"
    add.add("--memory-limit", type=size, default=MEMORY_LIMIT, help=words)
    words = "number of processes that read a folder's images; default: %(default)s, the main process"
    add.add("--workers", type=partial(positive, least=0), default=0, help=words)
    add.seed("of the weights and images of compression and dense")
    add.quick(
        f"{QUICK_SEEDS} seeds, {QUICK_EPOCHS} epoch, {QUICK_REPEATS} repeats, {QUICK_ROUNDS} rounds; compression of "
        f"{', '.join(QUICK_MODELS)} at {QUICK_SIZE} x {QUICK_SIZE} in few ways; dense of {', '.join(QUICK_DENSE)} at "
        f"{DENSE_QUICK_SIZE} x {DENSE_QUICK_SIZE}"
    )
    add.files()


def settle(asked: argparse.Namespace) -> None:
    """Finds the models and ways of each part.

    Raises:
        BenchError: what was asked for does not go together.
    """
    on_folder, named = asked.dataset == folder.DATASET, "parts" in asked.said
    if on_folder and not named:
        asked.parts = ["training"]
    others = [part for part in asked.parts if part not in ("training", "compression", "dense", "memory")]
    if on_folder and (others or "training" not in asked.parts):
        got = f", got {', '.join(asked.parts)}; use another --dataset" if others else "; add --part training"
        raise BenchError(f"--dataset {folder.DATASET} is for the part training{got}")
    classifiers = [name for name in asked.models if name in MODELS]
    denses = [name for name in asked.models if name in DENSE]
    for part, names in (("compression", classifiers), ("dense", denses)):
        if asked.models and named and part in asked.parts and not names:
            got = ", ".join(asked.models)
            raise BenchError(f"--model must name a model of part {part}, got {got}; leave it out, or add one")
    if on_folder and denses and not (named and "dense" in asked.parts):
        raise BenchError(f"--model must name classifiers for a folder's training, got {', '.join(denses)}")
    quick = asked.quick
    asked.compressed = classifiers if asked.models else list(QUICK_MODELS if quick else ORIGINALS)
    asked.dense = denses if asked.models else list(QUICK_DENSE if quick else DENSE)
    asked.trained = (classifiers or [FOLDER_MODEL]) if on_folder else []
    asked.images = asked.batch or (QUICK_BATCH if quick else None)
    asked.image_size = asked.size or (QUICK_SIZE if quick else SIZE)


def run(asked: argparse.Namespace) -> Record:
    """Runs the parts, with a progress bar each on stderr, each entry written when it is found.

    Raises:
        BenchError: the images cannot be used; the file holds other results.
    """
    going = begun(KIND, asked)
    data: Images | None = None
    tasks: list[Task] = []
    if asked.dataset == folder.DATASET:
        found = folder.load(asked.data_root, asked.image_size, asked.workers)
        batches = {name: asked.images or MODELS[name].batches[asked.device] for name in asked.trained}
        tasks = [training.on_folder(name, found, batch) for name, batch in batches.items()]
        going.set(data=str(found), recipe=_recipe(asked, tasks))
    elif set(asked.parts) - {"compression", "dense", "memory"}:
        data = images.load(asked.dataset, asked.data_root, tell=lambda line: print(line, file=sys.stderr))
        tasks = [training.on_images(data)] if "training" in asked.parts else []
        going.set(data=str(data), recipe=_recipe(asked, tasks))
    if "compression" in asked.parts:
        _compression(going, asked)
    if "dense" in asked.parts:
        _dense(going, asked)
    if "memory" in asked.parts:
        _memory(going, asked)
    for task in tasks:
        _training(going, task, asked)
    if data is not None:
        _with_images(going, data, asked)
    return going.record


def _recipe(asked: argparse.Namespace, tasks: list[Task]) -> dict[str, float]:
    recipe: dict[str, float] = {}
    for task in tasks:
        of = "" if task.model == training.SMALL else f" of {task.model}"
        recipe |= {"epochs": asked.epochs, **{f"{name}{of}": value for name, value in task.recipe.items()}}
    if {"variance", "ablation"} & set(asked.parts):
        recipe |= {"steps before variances": variance.STEPS, "batch of variances": variance.BATCH}
    return recipe


def _settings(asked: argparse.Namespace) -> Settings:
    return Settings(asked.device, asked.threads, asked.seed, asked.memory_limit)


def _compression(going: Run, asked: argparse.Namespace) -> None:
    names = going.present(asked.compressed, lambda name: needs(MODELS[name].library), "compression of ")
    wanted = [
        Cell(name, way, asked.images or MODELS[name].batches[asked.device], asked.image_size, asked.channels_last)
        for name in names
        for way in dict.fromkeys([PLAIN, *(asked.ways or (QUICK_WAYS if asked.quick else WAYS))])
    ]
    going.measure(wanted, lambda one: cell.measure(one, _settings(asked), cell.measure_here), name="compression")


def _dense(going: Run, asked: argparse.Namespace) -> None:
    if not going.present(["dense"], lambda _: needs("torchvision")):
        return
    batch = asked.batch or (DENSE_QUICK_BATCH if asked.quick else None)
    side = asked.size or (DENSE_QUICK_SIZE if asked.quick else None)
    wanted = [
        DenseCell(name, way, batch or DENSE[name].batches[asked.device], side or DENSE[name].sizes[asked.device])
        for name in asked.dense
        for way in dict.fromkeys([PLAIN, *(asked.ways or DENSE_WAYS)])
    ]
    going.measure(wanted, lambda one: cell.measure(one, _settings(asked), cell.measure_dense), name="dense")


def _memory(going: Run, asked: argparse.Namespace) -> None:
    if not going.present(["memory"], lambda _: resnet50(1)):
        return
    wanted = [Memory(cell.MODEL, level) for level in (UNTOUCHED, *LEVELS)]
    going.measure_together([wanted], lambda _: cell.measure_levels(LEVELS, asked.threads), name="memory")


def _training(going: Run, task: Task, asked: argparse.Namespace) -> None:
    """Each seed at full precision and in each way. A run that fails is recorded, and the rest goes on."""
    device = torch.device("cpu" if task.model == training.SMALL else asked.device)
    ways = [FULL, *(way for way in asked.ways or TRAINED_WAYS if way != PLAIN)]
    wanted = [VisionCurve(way, seed, model=task.model) for seed in range(asked.seeds) for way in ways]
    going.measure(wanted, lambda one: training.train(task, one.level, one.seed, asked.epochs, device), name="training")


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
            [StepTimes(order) for order in training.FORMATS],
            lambda one: training.measure_times(one.order, LEVELS, data, asked.rounds),
            name="time",
            lacks=lambda one: len(one.plain_seconds) < asked.rounds,
        )


WHAT = "image models: bytes, peaks, accuracy, the gradient's variance, time"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle, charted="variance")
