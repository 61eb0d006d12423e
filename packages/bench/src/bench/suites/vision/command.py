"""``python -m bench vision``: its options, and what is run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.cli.arguments import positive, size, two
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.models.data import image_folder as folder
from bench.models.data import images
from bench.models.data.images import Images
from bench.models.dense import DENSE
from bench.models.image_models import MODELS, ORIGINALS, SIZE
from bench.models.libraries import needs
from bench.models.networks import resnet50
from bench.results.record import Record
from bench.runner.memory import PLAIN as UNTOUCHED
from bench.runner.memory import Memory
from bench.runner.progress import progress
from bench.runner.run import Run, begun
from bench.suites.vision import cell as compression_cell
from bench.suites.vision import cell as dense_cell
from bench.suites.vision import cell as memory
from bench.suites.vision import training, variance
from bench.suites.vision import training as step_time
from bench.suites.vision import training as tasking
from bench.suites.vision.cell import Settings
from bench.suites.vision.entries import FULL, KIND, Ablated, Cell, DenseCell, StepTimes, Variance, VisionCurve
from bench.suites.vision.report import REPORT
from bench.suites.vision.training import Task
from bench.units import GIB, size_name
from bench.ways.conversions import PLAIN, WAYS

MEMORY_LIMIT = 16 * GIB
QUICK_MODELS = ("resnet18",)
QUICK_WAYS = ("L2.2", "Q-layers L3")
QUICK_BATCH, QUICK_SIZE = 4, 32


@dataclass(frozen=True)
class Asked:
    """Which cells are wanted.

    Attributes:
        models: names in ``MODELS``.
        ways: names in ``WAYS``; plain is always measured.
        batch: images of a step; ``None``: by model and device.
        size: their height and width.
        channels_last: whether images and kernels are in that order.
        memory_limit: bytes that a process may take on the CPU.
    """

    models: Sequence[str]
    ways: Sequence[str]
    batch: int | None = None
    size: int = SIZE
    channels_last: bool = False
    memory_limit: int = MEMORY_LIMIT

    def cells(self, device: str) -> list[Cell]:
        """Without numbers, the plain one of each model first."""
        return [
            Cell(name, way, self.batch or MODELS[name].batches[device], self.size, self.channels_last)
            for name in self.models
            for way in dict.fromkeys([PLAIN, *self.ways])
        ]


def require(name: str) -> None:
    """Raises ``MissingLibrary`` where a model's library is not there."""
    needs(MODELS[name].library)


DENSE_WAYS = ("L2", "Q-layers L3")
QUICK_DENSE = ("fcn_resnet50",)
DENSE_QUICK_BATCH, DENSE_QUICK_SIZE = 1, 96


@dataclass(frozen=True)
class DenseAsked:
    """Which cells are wanted.

    Attributes:
        models: names in ``DENSE``.
        ways: names in ``WAYS``; plain is always measured.
        batch, size: images of a step, and their height and width; ``None``: by model and device.
    """

    models: Sequence[str]
    ways: Sequence[str]
    batch: int | None = None
    size: int | None = None

    def cells(self, device: str) -> list[DenseCell]:
        """Without numbers, the plain one of each model first."""
        return [
            DenseCell(name, way, self.batch or DENSE[name].batches[device], self.size or DENSE[name].sizes[device])
            for name in self.models
            for way in dict.fromkeys([PLAIN, *self.ways])
        ]


def require_torchvision(_: str) -> None:
    """Raises ``MissingLibrary`` where the models' library is not there."""
    needs("torchvision")


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
    names = going.present(asked.compressed.models, require, "compression of ")
    wanted = [cell for cell in asked.compressed.cells(asked.device) if cell.model in names]
    going.measure(
        wanted,
        lambda cell: compression_cell.measure(cell, settings, compression_cell.measure_here),
        name="compression",
    )


def _dense(going: Run, asked: argparse.Namespace, settings: Settings) -> None:
    if not going.present(["dense"], require_torchvision):
        return
    wanted = asked.dense.cells(asked.device)
    going.measure(wanted, lambda cell: compression_cell.measure(cell, settings, dense_cell.measure_dense), name="dense")


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
    wanted = [Memory(memory.MODEL, level) for level in (UNTOUCHED, *LEVELS)]
    going.measure_together([wanted], lambda _: memory.measure_levels(LEVELS, asked.threads), name="memory")


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
            lambda one: step_time.measure_times(one.order, LEVELS, data, asked.rounds),
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


FOLDER_MODEL = "resnet50"  # on a folder, by default


def options(add: Options) -> None:
    """Those of the command."""
    add.part(PARTS)
    add.add(
        "--dataset",
        default="auto",
        choices=(*images.DATASETS, folder.DATASET),
        help="auto: CIFAR-10's subset at hand, otherwise digits; imagefolder: training of --model on train/ and val/ "
        "of --data-root, as ImageNet has them",
    )
    add.data_root(f"folder with {images.FILE}, default: ACTCORE_DATA; or with train/CLASS/ and val/CLASS/")
    add.number("--seeds", "of training, paired", default=SEEDS, quick=QUICK_SEEDS)
    add.number("--epochs", "of each training run", default=EPOCHS, quick=QUICK_EPOCHS)
    add.number("--repeats", "of a measured variance", default=REPEATS, quick=QUICK_REPEATS, kind=two)
    add.number("--rounds", "of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    _of_models(add)
    add.quick(
        f"{QUICK_SEEDS} seeds, {QUICK_EPOCHS} epoch, {QUICK_REPEATS} repeats, "
        f"{QUICK_ROUNDS} rounds; compression of {', '.join(QUICK_MODELS)} at "
        f"{QUICK_SIZE} x {QUICK_SIZE} in few ways; dense of {', '.join(QUICK_DENSE)} at "
        f"{DENSE_QUICK_SIZE} x {DENSE_QUICK_SIZE}"
    )
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", one by one; what the file has is not measured again")
    add.chart()


def _of_models(add: Options) -> None:
    words = (
        f"repeatable; of compression, default: {', '.join(ORIGINALS)}; of dense, default: {', '.join(DENSE)}; of a "
        f"folder's training, default: {FOLDER_MODEL}"
    )
    add.many("--model", (*MODELS, *DENSE), words)
    words = (
        f"of compression, repeatable; default: all of {', '.join(WAYS)}; of dense, default: "
        f"{', '.join(DENSE_WAYS)}; of training, default: {', '.join(TRAINED)}"
    )
    add.many("--way", WAYS, words, metavar="WAY")
    words = "of compression, of dense and of training on a folder; default: by model and device"
    add.add("--batch", type=positive, help=words)
    words = f"of images of compression and of a folder, default: {SIZE}; of dense, default: by model and device"
    add.add("--size", type=positive, help=words)
    words = "compression in that order, in which CPU convolutions copy nothing"
    add.add("--channels-last", action="store_true", help=words)
    words = size_name(MEMORY_LIMIT).replace(" ", "")
    words = f"of compression's and dense's processes on the CPU; default: {words}"
    add.add("--memory-limit", type=size, default=MEMORY_LIMIT, help=words)
    words = "processes that read a folder's images; default: %(default)s, the process itself"
    add.add("--workers", type=partial(positive, least=0), default=0, help=words)
    add.seed("of compression's and dense's weights and images")


def settle(asked: argparse.Namespace) -> None:
    """Finds the cells, the models and the ways of each part.

    Raises:
        BenchError: what was asked for does not go together.
    """
    on_folder, named, quick = asked.dataset == folder.DATASET, "parts" in asked.said, asked.quick
    asked.parts = asked.parts if named or not on_folder else ["training"]
    _require_parts(asked.parts, on_folder)
    if asked.chart is not None and "variance" not in asked.parts:
        raise BenchError("a chart shows the part variance; add --part variance, or leave --chart out")
    classifiers = [name for name in asked.models if name in MODELS]
    denses = [name for name in asked.models if name in DENSE]
    _require_models(asked, on_folder, {"compression": classifiers, "dense": denses})
    asked.images = asked.batch or (QUICK_BATCH if quick else None)
    asked.compressed = Asked(
        models=classifiers if asked.models else list(QUICK_MODELS if quick else ORIGINALS),
        ways=asked.ways or list(QUICK_WAYS if quick else WAYS),
        batch=asked.images,
        size=asked.size or (QUICK_SIZE if quick else SIZE),
        channels_last=asked.channels_last,
        memory_limit=asked.memory_limit,
    )
    asked.dense = DenseAsked(
        models=denses if asked.models else list(QUICK_DENSE if quick else DENSE),
        ways=asked.ways or list(DENSE_WAYS),
        batch=asked.batch or (DENSE_QUICK_BATCH if quick else None),
        size=asked.size or (DENSE_QUICK_SIZE if quick else None),
    )
    asked.trained = (classifiers or [FOLDER_MODEL]) if on_folder else []
    asked.trained_ways = [way for way in asked.ways or TRAINED if way != PLAIN]


def _require_parts(parts: Sequence[str], on_folder: bool) -> None:
    others = [part for part in parts if part not in ("training", "compression", "dense", "memory")]
    if on_folder and others:
        raise BenchError(
            f"--dataset {folder.DATASET} is for the part training, got {', '.join(others)}; use another --dataset"
        )
    if on_folder and "training" not in parts:
        raise BenchError(f"--dataset {folder.DATASET} is for the part training; add --part training, or leave it out")


def _require_models(asked: argparse.Namespace, on_folder: bool, models: Mapping[str, Sequence[str]]) -> None:
    """That a part which was named has a model, and a folder's training has none of ``dense``."""
    if not asked.models:
        return
    for part, names in models.items():
        if part in (asked.parts if "parts" in asked.said else ()) and not names:
            raise BenchError(
                f"--model must name one of part {part}, got {', '.join(asked.models)}; leave it out, or add one"
            )
    if on_folder and models["dense"] and "dense" not in (asked.parts if "parts" in asked.said else ()):
        raise BenchError(f"--model must name classifiers for a folder's training, got {', '.join(models['dense'])}")


WHAT = "image models: bytes, peaks, accuracy, the gradient's variance, time"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle)
