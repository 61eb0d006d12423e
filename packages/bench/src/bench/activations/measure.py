"""A run of ``python -m bench activations``: the parts that were asked for, one after another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

import integrations
from bench.activations import adaptation, cases, initial, levels, memory, overhead
from bench.activations.results import ActivationResults
from bench.errors import BenchError, MissingLibrary
from bench.kernels.clock import threads
from bench.machine import Machine

PARTS = ("models", "overhead", "memory", "adaptation", "initial")
LEVELS = ("L1", "L1.1", "L2", "L2.2")
STEPS, ROUNDS = 5, 9
QUICK_STEPS, QUICK_ROUNDS = 2, 2
QUICK_PARTS, QUICK_MODELS, QUICK_LEVELS = PARTS[:-1], ("bert", "gcn"), ("L1", "L2")

Item = TypeVar("Item")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        models: names of ``cases.MODELS``; those whose library is not installed are left out.
        levels: names of ``integrations.LEVELS``.
        steps: in which the gradient's error is measured, each with noise of its own.
        rounds: of timed steps that count.
        threads: of torch's operators.
        parts: of ``PARTS``.
    """

    models: Sequence[str]
    levels: Sequence[str]
    steps: int
    rounds: int
    threads: int
    parts: Sequence[str] = PARTS


def run(options: Options) -> ActivationResults:
    """Runs the parts, with a progress bar each on stderr.

    Raises:
        BenchError: no model's library is installed, or the process that measures memory failed.
    """
    start = time.perf_counter()
    skipped: list[str] = []
    with threads(options.threads):
        names = _installed(options.models, skipped) if set(options.parts) - {"overhead", "initial"} else []
        asked = {part: names if part in options.parts else [] for part in ("models", "memory", "adaptation")}
        adaptive = [level for level in options.levels if integrations.LEVELS[level].adaptive]
        models = [
            levels.measure(name, options.levels, options.steps, options.rounds)
            for name in _shown(asked["models"], "models")
        ]
        chains = overhead.CHAINS if "overhead" in options.parts else ()
        overheads = [overhead.measure(chain, options.rounds) for chain in _shown(chains, "overhead")]
        memories = [
            found
            for name in _shown(asked["memory"], "memory")
            for found in memory.measure(name, options.levels, options.threads)
        ]
        adaptations = [
            adaptation.measure(name, level, options.rounds)
            for name in _shown(asked["adaptation"], "adaptation")
            for level in adaptive
        ]
        image_models = initial.MODELS if "initial" in options.parts else ()
        try:
            errors = [
                found for name in _shown(image_models, "initial") for found in initial.measure(name, options.steps)
            ]
        except MissingLibrary as error:
            errors = []
            skipped.append(f"initial: {error}")
    machine = Machine.here(torch.device("cpu"), options.threads, ("torch", "actcore", "actcore-integrations"))
    seconds = time.perf_counter() - start
    return ActivationResults(machine, models, overheads, skipped, seconds, memories, adaptations, errors)


def _installed(models: Sequence[str], skipped: list[str]) -> list[str]:
    """Those that can be made; the others are said in ``skipped``."""
    names = []
    for name in models:
        try:
            cases.made(name)
            names.append(name)
        except MissingLibrary as error:
            skipped.append(f"{name}: {error}")
    if not names:
        raise BenchError(f"no model can be measured: {'; '.join(skipped)}")
    return names


def _shown(items: Iterable[Item], part: str) -> Iterable[Item]:
    """The items, with a progress bar where there are any."""
    found = list(items)
    return track(found, part, console=Console(stderr=True)) if found else ()
