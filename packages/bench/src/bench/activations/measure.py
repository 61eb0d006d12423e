"""Models at levels: what is stored, the gradient's error at initialisation, and a step's time beside the plain one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from rich.console import Console
from rich.progress import track

import integrations
from bench.activations import overhead
from bench.activations.results import ActivationResults, LevelResult, ModelResult
from bench.errors import BenchError, MissingLibrary
from bench.gradients import backward, gradient, relative_error
from bench.kernels.clock import in_turn, threads
from bench.machine import Machine
from bench.networks import Case, bert, gcn, resnet18, vit_tiny

LEVELS = ("L1", "L1.1", "L2", "L2.2")
STEPS, ROUNDS = 5, 9
QUICK_STEPS, QUICK_ROUNDS = 2, 2
MODELS: Mapping[str, Callable[[], Case]] = MappingProxyType(
    {
        "resnet18": partial(resnet18, 16),
        "vit_tiny": partial(vit_tiny, 4),
        "bert": partial(bert, 4, 0.1),
        "gcn": gcn,
    }
)
"""By the name that the command line knows."""


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        models: names of ``MODELS``; those whose library is not installed are left out.
        levels: names of ``integrations.LEVELS``.
        steps: in which the gradient's error is measured, each with noise of its own.
        rounds: of timed steps that count.
        threads: of torch's operators.
    """

    models: Sequence[str]
    levels: Sequence[str]
    steps: int
    rounds: int
    threads: int


def run(options: Options) -> ActivationResults:
    """Measures each model and each chain of tiny layers, with a progress bar on stderr.

    Raises:
        BenchError: no model's library is installed.
    """
    start = time.perf_counter()
    models, skipped = [], []
    with threads(options.threads):
        for name in track(options.models, "models", console=Console(stderr=True)):
            try:
                models.append(_measure(name, options))
            except MissingLibrary as error:
                skipped.append(f"{name}: {error}")
        if not models:
            raise BenchError(f"no model can be measured: {'; '.join(skipped)}")
        chains = track(overhead.CHAINS, "overhead", console=Console(stderr=True))
        overheads = [overhead.measure(chain, options.rounds) for chain in chains]
    machine = Machine.here(torch.device("cpu"), options.threads, ("torch", "actcore", "actcore-integrations"))
    return ActivationResults(machine, models, overheads, skipped, time.perf_counter() - start)


def _measure(name: str, options: Options) -> ModelResult:
    plain, generator = _made(name)
    exact = gradient(plain, generator)
    cases, errors, reports = [], [], []
    for level in options.levels:
        case, _ = _made(name)
        handle = integrations.compression(integrations.compress_model(case.model, level))
        if handle.level.adaptive:
            for _ in range(2):  # an unchanged loop plans in its second step
                backward(case, generator)
            assert handle.plan is not None
        errors.append([relative_error(gradient(case, generator), exact) for _ in range(options.steps)])
        reports.append(handle.report())
        cases.append(case)

    actions = [partial(backward, case, generator) for case in (plain, *cases)]
    plain_seconds, *seconds = in_turn(actions, options.rounds, torch.device("cpu"))
    levels = [
        LevelResult(level, report.original_bytes, report.stored_bytes, found, times)
        for level, report, found, times in zip(options.levels, reports, errors, seconds, strict=True)
    ]
    return ModelResult(name, plain.what, plain_seconds, levels)


def _made(name: str) -> tuple[Case, torch.Tensor]:
    """The model, the same at each call, and a state of torch's generator from which its steps start."""
    torch.manual_seed(0)
    return MODELS[name](), torch.get_rng_state()
