"""One model at levels: what is stored, the gradient's error as it is made, and a step's time beside the plain one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from bench.runner.clock import in_turn
from bench.runner.gradients import backward, gradient, relative_error
from bench.suites.memory.activations.cases import compressed, made
from bench.suites.memory.activations.results import LevelResult


def measure(name: str, levels: Sequence[str], steps: int, rounds: int) -> list[LevelResult]:
    """Measures one of ``cases.MODELS``.

    Args:
        name: of the model.
        levels: names of ``integrations.LEVELS``.
        steps: in which the gradient's error is measured, each with noise of its own.
        rounds: of timed steps that count.
    """
    plain, generator = made(name)
    exact = gradient(plain, generator)
    cases, errors, reports = [], [], []
    for level in levels:
        case, _, handle = compressed(name, level)
        errors.append([relative_error(gradient(case, generator), exact) for _ in range(steps)])
        reports.append(handle.report())
        cases.append(case)

    actions = [partial(backward, case, generator) for case in (plain, *cases)]
    plain_seconds, *seconds = in_turn(actions, rounds, torch.device("cpu"))
    return [
        LevelResult(name, level, plain.what, report.original_bytes, report.stored_bytes, error, times, plain_seconds)
        for level, report, error, times in zip(levels, reports, errors, seconds, strict=True)
    ]
