"""What each command of ``python -m bench`` does with its options: it runs, writes, prints and draws."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import RenderableType

from bench import chart, gnn, records, table
from bench.activations import cases as activation_cases
from bench.activations import chart as activation_chart
from bench.activations import measure as activations
from bench.activations import report as activation_report
from bench.activations.results import ActivationResults
from bench.checkpoint import architectures as checkpoint_models
from bench.checkpoint import chart as checkpoint_chart
from bench.checkpoint import measure as checkpointing
from bench.checkpoint import report as checkpoint_report
from bench.checkpoint.results import CheckpointResults
from bench.errors import BenchError
from bench.fewbit import chart as fewbit_chart
from bench.fewbit import measure as fewbit
from bench.fewbit import report as fewbit_report
from bench.fewbit import step_time
from bench.fewbit.results import FewBitResults
from bench.fewbit.unfinished import partial_file
from bench.kernels import chart as kernel_chart
from bench.kernels import measure as kernels
from bench.kernels import report as kernel_report
from bench.kernels.results import KernelResults
from bench.models import MODELS
from bench.sensitivity import chart as sensitivity_chart
from bench.sensitivity import measure as sensitivity
from bench.sensitivity import report as sensitivity_report
from bench.sensitivity.results import SensitivityResults
from bench.style import require_drawable
from bench.summary import REFERENCE
from bench.sweep import page as sweep_page
from bench.sweep import report as sweep_report
from bench.sweep import run as sweep
from bench.sweep.results import SweepResults
from bench.sweep.subjects import QUICK, SUBJECTS
from bench.vision import chart as vision_chart
from bench.vision import measure as vision
from bench.vision import report as vision_report
from bench.vision.results import VisionResults

FOLDER = Path("bench-results")  # of the current folder, for what is given no other place
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
    json = options.json or _default(f"gnn-{options.device}.json")
    picture = options.chart or (None if levels == [REFERENCE] else _default(f"gnn-{options.device}.png"))
    _require_writable(json, picture)
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
    _finish(results, json, picture)
    print(f"written: {json}{f' and {picture}' if picture else ''}", file=sys.stderr)


def run_kernels(options: Namespace) -> None:
    """``python -m bench kernels``."""
    _require_writable(options.json, options.chart)
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
    _finish(results, options.json, options.chart)


def run_sensitivity(options: Namespace) -> None:
    """``python -m bench sensitivity``."""
    _require_writable(options.json, options.chart)
    results = sensitivity.run(
        sensitivity.Options(
            models=list(dict.fromkeys(options.model or sensitivity.MODELS)),
            level=options.level,
            pairs=options.pairs or (sensitivity.QUICK_PAIRS if options.quick else sensitivity.PAIRS),
            steps=options.steps or (sensitivity.QUICK_STEPS if options.quick else sensitivity.STEPS),
            threads=options.threads,
        )
    )
    _finish(results, options.json, options.chart)


def run_activations(options: Namespace) -> None:
    """``python -m bench activations``."""
    parts = list(dict.fromkeys(options.part or activations.PARTS))
    if options.chart is not None and "models" not in parts:
        raise BenchError("a chart shows the part models; add --part models, or leave --chart out")
    _require_writable(options.json, options.chart)
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
    _finish(results, options.json, options.chart)


def run_vision(options: Namespace) -> None:
    """``python -m bench vision``."""
    parts = list(dict.fromkeys(options.part or vision.PARTS))
    if options.chart is not None and "variance" not in parts:
        raise BenchError("a chart shows the part variance; add --part variance, or leave --chart out")
    _require_writable(options.json, options.chart)
    results = vision.run(
        vision.Options(
            parts=parts,
            dataset=options.dataset,
            data_root=options.data_root,
            seeds=options.seeds or (vision.QUICK_SEEDS if options.quick else vision.SEEDS),
            epochs=options.epochs or (vision.QUICK_EPOCHS if options.quick else vision.EPOCHS),
            repeats=options.repeats or (vision.QUICK_REPEATS if options.quick else vision.REPEATS),
            rounds=options.rounds or (vision.QUICK_ROUNDS if options.quick else vision.ROUNDS),
            threads=options.threads,
        )
    )
    _finish(results, options.json, options.chart)


def run_fewbit(options: Namespace) -> None:
    """``python -m bench fewbit``."""
    parts = list(dict.fromkeys(options.part or fewbit.PARTS))
    _require_writable(options.json, options.chart)
    results = fewbit.run(
        fewbit.Options(
            parts=parts,
            named=options.part is not None,
            device=torch.device(options.device),
            data_root=options.data_root,
            batch=options.batch,
            seeds=options.seeds or (fewbit.QUICK_SEEDS if options.quick else fewbit.SEEDS),
            rounds=options.rounds or (step_time.QUICK_ROUNDS if options.quick else step_time.ROUNDS),
            threads=options.threads,
            quick=options.quick,
            json=options.json,
        )
    )
    _finish(results, options.json, options.chart)
    if options.json is not None:
        partial_file(options.json).unlink(missing_ok=True)


def run_checkpoint(options: Namespace) -> None:
    """``python -m bench checkpoint``. The file is written from the first result on, and taken up if it is there."""
    _require_writable(options.json, options.chart)
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
        )
    )
    _finish(results, options.json, options.chart)


def run_sweep(options: Namespace) -> None:
    """``python -m bench sweep``. The file is written from the first subject on, and taken up if it is there."""
    _require_writable(options.json, None)
    _require_writable(options.page, None)
    asked = [
        subject
        for subject in SUBJECTS
        if subject.ecosystem in (options.ecosystem or (subject.ecosystem,))
        and subject.name in (options.subject or (QUICK[subject.ecosystem] if options.quick else (subject.name,)))
    ]
    if not asked:
        ecosystems = ", ".join(options.ecosystem)
        raise BenchError(f"{ecosystems} has none of {', '.join(options.subject)}; leave out --ecosystem or --subject")
    results = sweep.run(
        sweep.Options(
            subjects=asked,
            level=options.level,
            steps=options.steps or (sweep.QUICK_STEPS if options.quick else sweep.STEPS),
            seed=options.seed,
            threads=options.threads,
            json=options.json,
        )
    )
    _finish(results, options.json, None)
    if options.page is not None:
        sweep_page.write(results, options.page)


def show(options: Namespace) -> None:
    """``python -m bench show``."""
    _finish(records.load(options.results), None, options.chart)


def _finish(results: records.AnyResults, json: Path | None, picture: Path | None) -> None:
    """Writes, prints and draws what was asked for."""
    if json is not None:
        records.save(results, json)
    text: RenderableType
    draw: Callable[[Path], None]
    if isinstance(results, KernelResults):
        text, draw = kernel_report.render(results), partial(kernel_chart.save_chart, results)
    elif isinstance(results, SensitivityResults):
        text, draw = sensitivity_report.render(results), partial(sensitivity_chart.save_chart, results)
    elif isinstance(results, ActivationResults):
        text, draw = activation_report.render(results), partial(activation_chart.save_chart, results)
    elif isinstance(results, VisionResults):
        text, draw = vision_report.render(results), partial(vision_chart.save_chart, results)
    elif isinstance(results, FewBitResults):
        text, draw = fewbit_report.render(results), partial(fewbit_chart.save_chart, results)
    elif isinstance(results, CheckpointResults):
        text, draw = checkpoint_report.render(results), partial(checkpoint_chart.save_chart, results)
    elif isinstance(results, SweepResults):
        text, draw = sweep_report.render(results), _no_chart
    else:
        text, draw = table.render(results), partial(chart.save_chart, results)
    table.console().print(text)
    if picture is not None:
        draw(picture)


def _no_chart(picture: Path) -> None:
    raise BenchError("a sweep has no chart; leave --chart out, the tables say it all")


def _default(name: str) -> Path:
    """Where a file goes that was given no place."""
    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{FOLDER} cannot be made ({error.strerror}); use --json and --chart") from error
    return FOLDER / name


def _require_writable(json: Path | None, picture: Path | None) -> None:
    """Before minutes of work, that their results can be written and drawn."""
    for file in (json, picture):
        if file is not None and not file.parent.is_dir():
            raise BenchError(f"{file} cannot be written: there is no folder {file.parent}")
    if picture is not None:
        require_drawable(picture)
