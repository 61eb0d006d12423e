"""What each command of ``python -m bench`` does with its options: it runs, writes, prints and draws."""

from __future__ import annotations

import sys
from argparse import Namespace

import torch

from bench import gnn, pages, records
from bench.activations import cases as activation_cases
from bench.activations import measure as activations
from bench.checkpoint import architectures as checkpoint_models
from bench.checkpoint import measure as checkpointing
from bench.errors import BenchError
from bench.finish import default, finish, require_writable
from bench.kernels import measure as kernels
from bench.models import MODELS
from bench.sensitivity import measure as sensitivity
from bench.style import require_drawable
from bench.summary import REFERENCE
from bench.systems import measure as systems
from bench.systems.subjects import QUICK as QUICK_SUBJECTS
from bench.systems.subjects import SUBJECTS
from bench.systems.ways import PLAIN, WAYS

LEVELS = ("L1", "L1.1", "L1.2")
SEEDS, EPOCHS = 3, 100
QUICK_SEEDS, QUICK_EPOCHS = 1, 10


def run_gnn(options: Namespace) -> None:
    """``python -m bench gnn``. The files have names of their own where none are given."""
    levels = list(dict.fromkeys(options.level or LEVELS))
    if options.chart is not None:
        require_drawable(options.chart)
        if levels == [REFERENCE]:
            raise BenchError("a chart compares levels with full precision; name another level, such as --level L1")
    json = options.json or default(f"gnn-{options.device}.json")
    picture = options.chart or (None if levels == [REFERENCE] else default(f"gnn-{options.device}.png"))
    require_writable(json, picture)
    results = gnn.run(
        gnn.Options(
            models=list(dict.fromkeys(options.model or MODELS)),
            levels=levels,
            dataset=options.dataset,
            data_root=options.data_root,
            device=torch.device(options.device),
            seeds=options.seeds or (QUICK_SEEDS if options.quick else SEEDS),
            epochs=options.epochs or (QUICK_EPOCHS if options.quick else EPOCHS),
            threads=options.threads,
            with_kernels=not options.quick,
        )
    )
    finish(results, json, picture)
    print(f"written: {json}{f' and {picture}' if picture else ''}", file=sys.stderr)


def run_kernels(options: Namespace) -> None:
    """``python -m bench kernels``."""
    require_writable(options.json, options.chart)
    sizes = options.size or (kernels.QUICK_SIZES if options.quick else kernels.SIZES[options.device])
    results = kernels.run(
        kernels.Options(
            device=torch.device(options.device),
            threads=options.threads,
            sizes=sorted(set(sizes)),
            rounds=options.rounds or (kernels.QUICK_ROUNDS if options.quick else kernels.ROUNDS),
            names=options.case or (),
            bits=options.bits or (),
            dtypes=options.dtype or (),
            with_others=not options.alone,
        )
    )
    finish(results, options.json, options.chart)


def run_sensitivity(options: Namespace) -> None:
    """``python -m bench sensitivity``."""
    require_writable(options.json, options.chart)
    results = sensitivity.run(
        sensitivity.Options(
            models=list(dict.fromkeys(options.model or sensitivity.MODELS)),
            level=options.level,
            pairs=options.pairs or (sensitivity.QUICK_PAIRS if options.quick else sensitivity.PAIRS),
            steps=options.steps or (sensitivity.QUICK_STEPS if options.quick else sensitivity.STEPS),
            threads=options.threads,
        )
    )
    finish(results, options.json, options.chart)


def run_activations(options: Namespace) -> None:
    """``python -m bench activations``."""
    parts = list(dict.fromkeys(options.part or activations.PARTS))
    if options.chart is not None and "models" not in parts:
        raise BenchError("a chart shows the part models; add --part models, or leave --chart out")
    require_writable(options.json, options.chart)
    results = activations.run(
        activations.Options(
            models=list(dict.fromkeys(options.model or activation_cases.MODELS)),
            levels=list(dict.fromkeys(options.level or activations.LEVELS)),
            steps=options.steps or (activations.QUICK_STEPS if options.quick else activations.STEPS),
            rounds=options.rounds or (activations.QUICK_ROUNDS if options.quick else activations.ROUNDS),
            threads=options.threads,
            parts=parts,
        )
    )
    finish(results, options.json, options.chart)


def run_checkpoint(options: Namespace) -> None:
    """``python -m bench checkpoint``. The file is written from the first result on, and taken up if it is there."""
    require_writable(options.json, options.chart)
    models = options.model or (checkpoint_models.QUICK if options.quick else checkpoint_models.ARCHITECTURES)
    parts = options.part or [part for part in checkpointing.PARTS if part != "compile" or not options.quick]
    results = checkpointing.run(
        checkpointing.Options(
            models=list(dict.fromkeys(models)),
            parts=list(dict.fromkeys(parts)),
            device=torch.device(options.device),
            threads=options.threads,
            memory_limit=options.memory_limit,
            batch=options.batch,
            size=options.size,
            compiled=list(dict.fromkeys(options.compile or checkpointing.COMPILED)),
            rounds=options.rounds or (checkpointing.QUICK_ROUNDS if options.quick else checkpointing.ROUNDS),
            seed=options.seed,
            quick=options.quick,
            json=options.json,
            channels_last=options.channels_last,
        )
    )
    finish(results, options.json, options.chart)


def run_systems(options: Namespace) -> None:
    """``python -m bench systems``. The file is written from the first cell on, and taken up if it is there."""
    require_writable(options.json, options.chart)
    ways = options.way or [name for name, way in WAYS.items() if options.compile or not way.slow]
    results = systems.run(
        systems.Options(
            subjects=list(dict.fromkeys(options.model or (QUICK_SUBJECTS if options.quick else SUBJECTS))),
            ways=list(dict.fromkeys([PLAIN, *ways])),
            timed=not options.no_time,
            rounds=options.rounds or (systems.QUICK_ROUNDS if options.quick else systems.ROUNDS),
            device=torch.device(options.device),
            threads=options.threads,
            seed=options.seed,
            json=options.json,
        )
    )
    finish(results, options.json, options.chart)


def report(options: Namespace) -> None:
    """``python -m bench report``."""
    for page in options.page:
        try:
            text = page.read_text()
        except OSError as error:
            raise BenchError(f"{page} cannot be read ({error.strerror})") from error
        made = pages.rendered(text, options.results)
        if options.check and made != text:
            raise BenchError(f"{page} has tables that are not those of {options.results}; run it without --check")
        if made != text:
            page.write_text(made)
        print(f"{page}: {'as it was' if made == text else 'tables made anew'}")


def show(options: Namespace) -> None:
    """``python -m bench show``."""
    finish(records.load(options.results), None, options.chart)
