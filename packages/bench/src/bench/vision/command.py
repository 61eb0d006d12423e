"""``python -m bench vision``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from bench.arguments import add_chart, add_shared, positive, size, two
from bench.errors import BenchError
from bench.finish import finish, require_writable
from bench.units import size_name
from bench.vision import folder, images, measure
from bench.vision.compression import measure as compressing
from bench.vision.compression.ways import PLAIN, WAYS
from bench.vision.dense import measure as dense
from bench.vision.dense.models import DENSE
from bench.vision.models import MODELS, ORIGINALS, SIZE

TRAINED = "resnet50"  # on a folder, by default


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_vision)
    parser.add_argument(
        "--part", action="append", choices=measure.PARTS, help="of the measurements, repeatable; default: all"
    )
    parser.add_argument(
        "--dataset",
        default="auto",
        choices=(*images.DATASETS, folder.DATASET),
        help="auto: CIFAR-10's subset at hand, otherwise digits; imagefolder: training of --model on train/ and val/ "
        "of --data-root, as ImageNet has them",
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help=f"folder with {images.FILE}, default: ACTCORE_DATA; or with train/CLASS/ and val/CLASS/",
    )
    parser.add_argument("--seeds", type=positive, help=f"of training, paired; default: {measure.SEEDS}")
    parser.add_argument("--epochs", type=positive, help=f"of each training run; default: {measure.EPOCHS}")
    parser.add_argument("--repeats", type=two, help=f"of a measured variance; default: {measure.REPEATS}")
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {measure.ROUNDS}")
    _add_compression(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{measure.QUICK_SEEDS} seeds, {measure.QUICK_EPOCHS} epoch, {measure.QUICK_REPEATS} repeats, "
        f"{measure.QUICK_ROUNDS} rounds; compression of {', '.join(compressing.QUICK_MODELS)} at "
        f"{compressing.QUICK_SIZE} x {compressing.QUICK_SIZE} in few ways; dense of {', '.join(dense.QUICK_DENSE)} at "
        f"{dense.QUICK_SIZE} x {dense.QUICK_SIZE}: shows that it works",
    )
    add_shared(parser, threads=torch.get_num_threads(), place=", part by part; it is taken up")
    add_chart(parser)


def _add_compression(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        choices=(*MODELS, *DENSE),
        help=f"repeatable; of compression, default: {', '.join(ORIGINALS)}; of dense, default: {', '.join(DENSE)}; of "
        f"a folder's training, default: {TRAINED}",
    )
    parser.add_argument(
        "--way",
        action="append",
        choices=WAYS,
        metavar="WAY",
        help=f"of compression, repeatable; default: all of {', '.join(WAYS)}; of dense, default: "
        f"{', '.join(dense.DENSE_WAYS)}; of training, default: {', '.join(measure.TRAINED)}",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        help="of compression, of dense and of training on a folder; default: by model and device",
    )
    parser.add_argument(
        "--size",
        type=positive,
        help=f"of images of compression and of a folder, default: {SIZE}; of dense, default: by model and device",
    )
    parser.add_argument(
        "--channels-last", action="store_true", help="compression in that order, in which CPU convolutions copy nothing"
    )
    parser.add_argument(
        "--memory-limit",
        type=size,
        default=compressing.MEMORY_LIMIT,
        help="of compression's and dense's processes on the CPU; "
        f"default: {size_name(compressing.MEMORY_LIMIT).replace(' ', '')}",
    )
    parser.add_argument(
        "--workers",
        type=partial(positive, least=0),
        default=0,
        help="processes that read a folder's images; default: %(default)s, the process itself",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of compression's and dense's weights and images; default: %(default)s"
    )


def run_vision(options: argparse.Namespace) -> None:
    """The file is written part by part, and taken up if it is there."""
    on_folder = options.dataset == folder.DATASET
    parts = list(dict.fromkeys(options.part or (("training",) if on_folder else measure.PARTS)))
    _require_parts(parts, on_folder)
    if options.chart is not None and "variance" not in parts:
        raise BenchError("a chart shows the part variance; add --part variance, or leave --chart out")
    require_writable(options.json, options.chart)
    quick = options.quick
    classifiers = [name for name in dict.fromkeys(options.model or ()) if name in MODELS]
    denses = [name for name in dict.fromkeys(options.model or ()) if name in DENSE]
    _require_models(options, on_folder, {"compression": classifiers, "dense": denses})
    asked = compressing.Asked(
        models=classifiers if options.model else list(compressing.QUICK_MODELS if quick else ORIGINALS),
        ways=list(dict.fromkeys(options.way or (compressing.QUICK_WAYS if quick else WAYS))),
        batch=options.batch or (compressing.QUICK_BATCH if quick else None),
        size=options.size or (compressing.QUICK_SIZE if quick else SIZE),
        channels_last=options.channels_last,
        memory_limit=options.memory_limit,
    )
    dense_asked = dense.Asked(
        models=denses if options.model else list(dense.QUICK_DENSE if quick else DENSE),
        ways=list(dict.fromkeys(options.way or dense.DENSE_WAYS)),
        batch=options.batch or (dense.QUICK_BATCH if quick else None),
        size=options.size or (dense.QUICK_SIZE if quick else None),
    )
    results = measure.run(
        measure.Options(
            parts=parts,
            dataset=options.dataset,
            data_root=options.data_root,
            trained=(classifiers or [TRAINED]) if on_folder else [],
            ways=[way for way in dict.fromkeys(options.way or measure.TRAINED) if way != PLAIN],
            batch=options.batch or (compressing.QUICK_BATCH if quick else None),
            workers=options.workers,
            seeds=options.seeds or (measure.QUICK_SEEDS if quick else measure.SEEDS),
            epochs=options.epochs or (measure.QUICK_EPOCHS if quick else measure.EPOCHS),
            repeats=options.repeats or (measure.QUICK_REPEATS if quick else measure.REPEATS),
            rounds=options.rounds or (measure.QUICK_ROUNDS if quick else measure.ROUNDS),
            threads=options.threads,
            compressed=asked,
            dense=dense_asked,
            device=torch.device(options.device),
            seed=options.seed,
            json=options.json,
        )
    )
    finish(results, options.json, options.chart)


def _require_parts(parts: Sequence[str], on_folder: bool) -> None:
    others = [part for part in parts if part not in ("training", "compression", "dense", "memory")]
    if on_folder and others:
        raise BenchError(
            f"--dataset {folder.DATASET} is for the part training, got {', '.join(others)}; use another --dataset"
        )
    if on_folder and "training" not in parts:
        raise BenchError(f"--dataset {folder.DATASET} is for the part training; add --part training, or leave it out")


def _require_models(options: argparse.Namespace, on_folder: bool, models: Mapping[str, Sequence[str]]) -> None:
    """That a part which was named has a model, and a folder's training has none of ``dense``."""
    if not options.model:
        return
    for part, names in models.items():
        if part in (options.part or ()) and not names:
            raise BenchError(
                f"--model must name one of part {part}, got {', '.join(options.model)}; leave it out, or add one"
            )
    if on_folder and models["dense"] and "dense" not in (options.part or ()):
        raise BenchError(f"--model must name classifiers for a folder's training, got {', '.join(models['dense'])}")
