"""A run of ``python -m bench vision``: the parts that were asked for, one after another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.errors import MissingLibrary
from bench.kernels.clock import threads
from bench.machine import Machine
from bench.networks import resnet50
from bench.progress import progress
from bench.vision import images, memory, step_time, training, variance
from bench.vision.images import Images
from bench.vision.results import VisionResults
from integrations import qmodules

PARTS = ("memory", "training", "variance", "ablation", "time")
LEVELS = ("L1", "L2", "L3")  # of memory and time
TRAINED = ("L3",)
VARIANCES = ("L2", "L3")
SEEDS, EPOCHS, REPEATS, ROUNDS = 10, 3, 10, 9
QUICK_SEEDS, QUICK_EPOCHS, QUICK_REPEATS, QUICK_ROUNDS = 3, 1, 4, 3


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        parts: of ``PARTS``.
        dataset, data_root: as for ``bench.vision.images.load``.
        seeds: of training, in pairs; they are 0, 1, ...
        epochs: of each training run.
        repeats: of each measurement of a variance.
        rounds: of timed steps that count.
        threads: of torch's operators.
        steps: of training before variances are measured.
    """

    parts: Sequence[str]
    dataset: str
    data_root: Path | None
    seeds: int
    epochs: int
    repeats: int
    rounds: int
    threads: int
    steps: int = variance.STEPS


def run(options: Options) -> VisionResults:
    """Runs the parts, with a progress bar on stderr.

    Raises:
        BenchError: the images cannot be used, or the process that measures memory failed.
    """
    start = time.perf_counter()
    data: Images | None = None
    if set(options.parts) - {"memory"}:
        data = images.load(options.dataset, options.data_root, tell=lambda line: print(line, file=sys.stderr))
    found: dict[str, list[object]] = {}
    skipped: list[str] = []
    with threads(options.threads), progress("vision", _steps(options)) as advance:
        if "memory" in options.parts:
            try:
                resnet50(1)  # whether it can be made
                found["memories"] = [*memory.measure(LEVELS, options.threads)]
            except MissingLibrary as error:
                skipped.append(f"memory: {error}")
            advance("memory")
        if data is not None:
            found |= _with_images(options, data, advance)
    return VisionResults(
        machine=Machine.here(torch.device("cpu"), options.threads, ("torch", "actcore", "actcore-integrations")),
        data="" if data is None else str(data),
        recipe=_recipe(options),
        skipped=skipped,
        seconds=time.perf_counter() - start,
        **found,  # type: ignore[arg-type]
    )


def _with_images(options: Options, data: Images, advance: Callable[[str], None]) -> dict[str, list[object]]:
    """The fields of the results that the parts with images fill."""
    found: dict[str, list[object]] = {}
    if "training" in options.parts:
        found["curves"] = [*training.train_in_pairs(TRAINED, options.seeds, data, options.epochs, advance)]
    if {"variance", "ablation"} & set(options.parts):
        model = variance.trained(data, options.steps)
        if "variance" in options.parts:
            found["variances"] = [*variance.measure(model, VARIANCES, data, options.repeats, advance)]
        if "ablation" in options.parts:
            found["ablation"] = [*variance.ablate(model, data, options.repeats, advance)]
    if "time" in options.parts:
        found["times"] = []
        for order in step_time.FORMATS:
            found["times"].append(step_time.measure(order, LEVELS, data, options.rounds))
            advance(f"time, {order}")
    return found


def _recipe(options: Options) -> dict[str, float]:
    recipe: dict[str, float] = {}
    if "training" in options.parts:
        recipe |= {**training.RECIPE, "epochs": options.epochs}
    if {"variance", "ablation"} & set(options.parts):
        recipe |= {"steps before variances": options.steps, "batch of variances": variance.BATCH}
    return recipe


def _steps(options: Options) -> int:
    """How often a run says that it is a step further."""
    steps = {
        "memory": 1,
        "training": (1 + len(TRAINED)) * options.seeds * options.epochs,
        "variance": len(VARIANCES),
        "ablation": len(qmodules.ablation_levels()) + 1,
        "time": len(step_time.FORMATS),
    }
    return sum(steps[part] for part in options.parts)
