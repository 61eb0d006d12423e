"""A run of ``python -m bench vision``: the parts that were asked for, one after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench import records
from bench.errors import BenchError, MissingLibrary
from bench.kernels.clock import threads
from bench.machine import Machine, installed
from bench.networks import resnet50
from bench.progress import progress
from bench.taken_up import commit_of, taken_up
from bench.vision import folder, images, memory, step_time, training, variance
from bench.vision import tasks as tasking
from bench.vision.compression import cell as compression_cell
from bench.vision.compression import measure as compressing
from bench.vision.compression.cell import Settings
from bench.vision.compression.measure import Asked
from bench.vision.compression.results import Cell
from bench.vision.dense import cell as dense_cell
from bench.vision.dense import measure as dense
from bench.vision.dense.models import DENSE
from bench.vision.dense.results import DenseCell
from bench.vision.images import Images
from bench.vision.models import MODELS
from bench.vision.results import VisionResults
from bench.vision.tasks import Task
from bench.vision.training import VisionCurve
from integrations import qmodules

PARTS = ("compression", "dense", "memory", "training", "variance", "ablation", "time")
LEVELS = ("L1", "L2", "L3")  # of memory and time
TRAINED = ("Q-layers L3",)
VARIANCES = ("L2", "L3")
SEEDS, EPOCHS, REPEATS, ROUNDS = 10, 3, 10, 9
QUICK_SEEDS, QUICK_EPOCHS, QUICK_REPEATS, QUICK_ROUNDS = 3, 1, 4, 3

_WITHOUT_IMAGES = {"compression", "dense", "memory"}
_PACKAGES = ("torch", "actcore", "actcore-integrations")
_LIBRARIES = ("torchvision", "timm")  # that the models are of


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        parts: of ``PARTS``.
        dataset, data_root: as for ``bench.vision.images.load``, or of ``bench.vision.folder.load``.
        trained: models of ``MODELS`` that are trained on a folder.
        ways: names in ``WAYS`` that training is compared in.
        batch: images of a step of training on a folder; ``None``: by model and device.
        workers: processes that read a folder's images.
        seeds: of training, in pairs; they are 0, 1, ...
        epochs: of each training run.
        repeats: of each measurement of a variance.
        rounds: of timed steps that count.
        threads: of torch's operators.
        compressed: which cells of the part compression.
        dense: which cells of the part dense.
        device: of the parts compression and dense, and of training on a folder; all else is on the CPU.
        seed: of the parts compression and dense.
        json: the file that results are written to, and taken up from.
        steps: of training before variances are measured.
    """

    parts: Sequence[str]
    dataset: str
    data_root: Path | None
    trained: Sequence[str]
    ways: Sequence[str]
    batch: int | None
    workers: int
    seeds: int
    epochs: int
    repeats: int
    rounds: int
    threads: int
    compressed: Asked
    dense: dense.Asked
    device: torch.device
    seed: int
    json: Path | None
    steps: int = variance.STEPS


def run(options: Options) -> VisionResults:
    """Runs the parts, with a progress bar on stderr, each written when it is done; compression and dense
    cell by cell.

    A file that is there is taken up: cells that it has are not measured again, parts without cells are.

    Raises:
        BenchError: there is no such device; the images cannot be used; the process that measures memory failed; the
            file holds other results.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    machine = Machine.here(options.device, options.threads, (*_PACKAGES, *filter(installed, _LIBRARIES)))
    blank = VisionResults(machine, "", {}, device=options.device.type, seed=options.seed)
    named = "machine, device, seed, number of threads or version of torch"
    run = _Run(options, replace(taken_up(blank, options.json, _settings, named), skipped=[]))
    data: Images | None = None
    tasks: list[Task] = []
    if options.dataset == folder.DATASET:
        tasks = _on_folder(run)
    elif set(options.parts) - _WITHOUT_IMAGES:
        data = images.load(options.dataset, options.data_root, tell=lambda line: print(line, file=sys.stderr))
        tasks = [tasking.on_images(data)] if "training" in options.parts else []
        run.use(str(data), tasks)
    with threads(options.threads), progress("vision", _steps(options)) as advance:
        if "compression" in options.parts:
            _compression(run, advance)
        if "dense" in options.parts:
            _dense(run, advance)
        if "memory" in options.parts:
            _memory(run)
            advance("memory")
        for task in tasks:
            _training(run, task, advance)
        if data is not None:
            _with_images(run, data, advance)
    return run.results


class _Run:
    """The results so far: in the file that they are written to.

    Attributes:
        options: what to run.
        results: so far.
        commit: that new entries are made with.
    """

    def __init__(self, options: Options, results: VisionResults) -> None:
        self.options, self.results = options, results
        self.commit = commit_of(results.machine)
        self._start, self._earlier = time.perf_counter(), results.seconds

    def use(self, data: str, tasks: Sequence[Task]) -> None:
        """Says on which images what follows is, and how it is trained.

        Raises:
            BenchError: what was taken up is on others, or was trained in another way.
        """
        held = self.results
        if held.data not in ("", data):
            raise BenchError(
                f"{self.options.json} holds results on the {held.data}, not on the {data}; name another file"
            )
        recipe = _recipe(self.options, tasks)
        other = [name for name, value in recipe.items() if held.recipe.get(name, value) != value]
        if other:
            raise BenchError(
                f"{self.options.json} holds results of another recipe ({', '.join(other)}); name another file, or "
                "delete it"
            )
        self.results = replace(held, data=data, recipe={**held.recipe, **recipe})

    def skip(self, reason: str) -> None:
        """Says what is left out."""
        self.results = replace(self.results, skipped=[*self.results.skipped, reason])

    def keep(self, **found: object) -> None:
        """Adds to the results, and writes them."""
        seconds = self._earlier + time.perf_counter() - self._start
        self.results = replace(self.results, seconds=seconds, **found)  # type: ignore[arg-type]
        if self.options.json is not None:
            records.save(self.results, self.options.json)


def _compression(run: _Run, advance: Callable[[str], None]) -> None:
    options = run.options
    lacking = compressing.missing(options.compressed.models)
    for name, reason in lacking.items():
        run.skip(f"compression of {name}: {reason}")
    settings, commit = _cell_settings(options), run.commit

    def measured(cell: Cell) -> Cell:
        return replace(compression_cell.measure(cell, settings), commit=commit)

    def keep(cells: list[Cell], new: Cell) -> None:
        run.keep(compressions=cells)
        advance(f"compression, {new.model}, {new.way}")

    wanted = [cell for cell in options.compressed.cells(options.device.type) if cell.model not in lacking]
    compressing.measure(wanted, run.results.compressions, measured, list(MODELS), keep)


def _dense(run: _Run, advance: Callable[[str], None]) -> None:
    options = run.options
    if reason := dense.missing():
        run.skip(f"dense: {reason}")
        return
    settings, commit = _cell_settings(options), run.commit

    def measured(cell: DenseCell) -> DenseCell:
        return replace(dense_cell.measure(cell, settings), commit=commit)

    def keep(cells: list[DenseCell], new: DenseCell) -> None:
        run.keep(dense=cells)
        advance(f"dense, {new.model}, {new.way}")

    wanted = options.dense.cells(options.device.type)
    compressing.measure(wanted, run.results.dense, measured, list(DENSE), keep)


def _cell_settings(options: Options) -> Settings:
    return Settings(options.device.type, options.threads, options.seed, options.compressed.memory_limit)


def _on_folder(run: _Run) -> list[Task]:
    """What is trained on the folder's images.

    Raises:
        BenchError: the folder cannot be used.
    """
    options = run.options
    found = folder.load(options.data_root, options.compressed.size, options.workers)
    batches = {name: options.batch or MODELS[name].batches[options.device.type] for name in options.trained}
    tasks = [tasking.on_folder(name, found, batch) for name, batch in batches.items()]
    run.use(str(found), tasks)
    return tasks


def _training(run: _Run, task: Task, advance: Callable[[str], None]) -> None:
    options = run.options
    device = torch.device("cpu") if task.model == tasking.SMALL else options.device

    def keep(curve: VisionCurve) -> None:
        def which(one: VisionCurve) -> tuple[object, ...]:
            return one.model, one.level, one.seed

        others = [one for one in run.results.curves if which(one) != which(curve)]
        run.keep(curves=[*others, replace(curve, commit=run.commit)])

    known = run.results.curves
    training.train_in_pairs(task, options.ways, options.seeds, options.epochs, known, device, keep, advance)


def _memory(run: _Run) -> None:
    try:
        resnet50(1)  # whether it can be made
        found = memory.measure(LEVELS, run.options.threads)
        run.keep(memories=[replace(one, commit=run.commit) for one in found])
    except MissingLibrary as error:
        run.skip(f"memory: {error}")


def _with_images(run: _Run, data: Images, advance: Callable[[str], None]) -> None:
    """The parts that need images, but for training."""
    options = run.options
    if {"variance", "ablation"} & set(options.parts):
        model = variance.trained(data, options.steps)
        if "variance" in options.parts:
            found = variance.measure(model, VARIANCES, data, options.repeats, advance)
            run.keep(variances=[replace(one, commit=run.commit) for one in found])
        if "ablation" in options.parts:
            found = variance.ablate(model, data, options.repeats, advance)
            run.keep(ablation=[replace(one, commit=run.commit) for one in found])
    if "time" in options.parts:
        times = []
        for order in step_time.FORMATS:
            times.append(replace(step_time.measure(order, LEVELS, data, options.rounds), commit=run.commit))
            advance(f"time, {order}")
        run.keep(times=times)


def _settings(results: VisionResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions["torch"], results.device, results.seed


def _recipe(options: Options, tasks: Sequence[Task]) -> dict[str, float]:
    recipe: dict[str, float] = {}
    for task in tasks:
        of = "" if task.model == tasking.SMALL else f" of {task.model}"
        recipe |= {"epochs": options.epochs, **{f"{name}{of}": value for name, value in task.recipe.items()}}
    if {"variance", "ablation"} & set(options.parts):
        recipe |= {"steps before variances": options.steps, "batch of variances": variance.BATCH}
    return recipe


def _steps(options: Options) -> int:
    """How often a run says that it is a step further."""
    steps = {
        "compression": len(options.compressed.cells(options.device.type)),
        "dense": len(options.dense.cells(options.device.type)),
        "memory": 1,
        "training": (1 + len(options.ways)) * options.seeds * options.epochs * max(1, len(options.trained)),
        "variance": len(VARIANCES),
        "ablation": len(qmodules.ablation_levels()) + 1,
        "time": len(step_time.FORMATS),
    }
    return sum(steps[part] for part in options.parts)
