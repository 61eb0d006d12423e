"""What it costs to measure which tensors matter: a measured step beside ordinary ones, in turn."""

from __future__ import annotations

from functools import partial

import torch

from bench.runner.clock import in_turn
from bench.runner.gradients import backward
from bench.suites.memory.activations.cases import compressed
from bench.suites.memory.activations.results import Adaptation


def measure(name: str, level: str, rounds: int) -> Adaptation:
    """Times steps of one of ``cases.MODELS`` at an adaptive level, those that make a plan and those that follow one."""
    case, generator, handle = compressed(name, level)
    before = handle.plan

    def measured() -> None:
        nonlocal before
        handle.adapt_soon()  # as when a step is due
        backward(case, generator)
        plan = handle.plan  # is made when somebody asks, or the next forward starts
        assert plan is not before
        before = plan

    ordinary, adapting = in_turn([partial(backward, case, generator), measured], rounds, torch.device("cpu"))
    return Adaptation(name, level, handle.level.adapt_interval, ordinary, adapting)
