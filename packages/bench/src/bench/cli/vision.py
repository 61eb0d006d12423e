"""``python -m bench vision``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from bench.cli.arguments import positive, size, two
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.models.data import image_folder as folder
from bench.models.data import images
from bench.models.dense import DENSE
from bench.models.image_models import MODELS, ORIGINALS, SIZE
from bench.suites.vision import measure
from bench.suites.vision.compression import measure as compressing
from bench.suites.vision.dense import measure as dense
from bench.suites.vision.report import REPORT
from bench.suites.vision.results import KIND
from bench.units import size_name
from bench.ways.conversions import PLAIN, WAYS

TRAINED = "resnet50"  # on a folder, by default


def options(add: Options) -> None:
    """Those of the command."""
    add.part(measure.PARTS)
    add.add(
        "--dataset",
        default="auto",
        choices=(*images.DATASETS, folder.DATASET),
        help="auto: CIFAR-10's subset at hand, otherwise digits; imagefolder: training of --model on train/ and val/ "
        "of --data-root, as ImageNet has them",
    )
    add.data_root(f"folder with {images.FILE}, default: ACTCORE_DATA; or with train/CLASS/ and val/CLASS/")
    add.number("--seeds", "of training, paired", default=measure.SEEDS, quick=measure.QUICK_SEEDS)
    add.number("--epochs", "of each training run", default=measure.EPOCHS, quick=measure.QUICK_EPOCHS)
    add.number("--repeats", "of a measured variance", default=measure.REPEATS, quick=measure.QUICK_REPEATS, kind=two)
    add.number("--rounds", "of timed steps", default=measure.ROUNDS, quick=measure.QUICK_ROUNDS)
    _of_models(add)
    add.quick(
        f"{measure.QUICK_SEEDS} seeds, {measure.QUICK_EPOCHS} epoch, {measure.QUICK_REPEATS} repeats, "
        f"{measure.QUICK_ROUNDS} rounds; compression of {', '.join(compressing.QUICK_MODELS)} at "
        f"{compressing.QUICK_SIZE} x {compressing.QUICK_SIZE} in few ways; dense of {', '.join(dense.QUICK_DENSE)} at "
        f"{dense.QUICK_SIZE} x {dense.QUICK_SIZE}"
    )
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", one by one; what the file has is not measured again")
    add.chart()


def _of_models(add: Options) -> None:
    words = (
        f"repeatable; of compression, default: {', '.join(ORIGINALS)}; of dense, default: {', '.join(DENSE)}; of a "
        f"folder's training, default: {TRAINED}"
    )
    add.many("--model", (*MODELS, *DENSE), words)
    words = (
        f"of compression, repeatable; default: all of {', '.join(WAYS)}; of dense, default: "
        f"{', '.join(dense.DENSE_WAYS)}; of training, default: {', '.join(measure.TRAINED)}"
    )
    add.many("--way", WAYS, words, metavar="WAY")
    words = "of compression, of dense and of training on a folder; default: by model and device"
    add.add("--batch", type=positive, help=words)
    words = f"of images of compression and of a folder, default: {SIZE}; of dense, default: by model and device"
    add.add("--size", type=positive, help=words)
    words = "compression in that order, in which CPU convolutions copy nothing"
    add.add("--channels-last", action="store_true", help=words)
    words = size_name(compressing.MEMORY_LIMIT).replace(" ", "")
    words = f"of compression's and dense's processes on the CPU; default: {words}"
    add.add("--memory-limit", type=size, default=compressing.MEMORY_LIMIT, help=words)
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
    asked.images = asked.batch or (compressing.QUICK_BATCH if quick else None)
    asked.compressed = compressing.Asked(
        models=classifiers if asked.models else list(compressing.QUICK_MODELS if quick else ORIGINALS),
        ways=asked.ways or list(compressing.QUICK_WAYS if quick else WAYS),
        batch=asked.images,
        size=asked.size or (compressing.QUICK_SIZE if quick else SIZE),
        channels_last=asked.channels_last,
        memory_limit=asked.memory_limit,
    )
    asked.dense = dense.Asked(
        models=denses if asked.models else list(dense.QUICK_DENSE if quick else DENSE),
        ways=asked.ways or list(dense.DENSE_WAYS),
        batch=asked.batch or (dense.QUICK_BATCH if quick else None),
        size=asked.size or (dense.QUICK_SIZE if quick else None),
    )
    asked.trained = (classifiers or [TRAINED]) if on_folder else []
    asked.trained_ways = [way for way in asked.ways or measure.TRAINED if way != PLAIN]


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
BENCH = Bench(KIND, WHAT, options, measure.run, REPORT, settle)
