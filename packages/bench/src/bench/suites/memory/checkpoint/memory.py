"""Measured activation peaks, in a process of their own.

The activation peak is the most memory during forward and backward, less what was there before, with ``.grad`` unset,
and less the gradients. A step that pays for caches goes before; where a step takes long, that one is of few samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from bench.models.architectures import ARCHITECTURES, Architecture
from bench.runner.child import Child
from bench.runner.memory import peak_bytes
from bench.runner.process_memory import Counters, counters, limit_allocation
from bench.suites.memory.checkpoint.results import Peak
from bench.suites.memory.checkpoint.step import Setup, build, loss, make_inputs
from bench.ways.checkpoints import CheckpointWay, ready
from integrations.checkpoint import Plan

LONG = 2.0  # modelled seconds of a step from which few samples go before it; it takes about as long on two cores
FEW = 2  # samples of that one; BatchNorm needs two


@dataclass(frozen=True)
class Job:
    """A step whose peak is to be measured.

    Attributes:
        way: how the model is trained.
        batch, size: of its inputs.
        warm_up: samples of the step that goes before.
        planned_bytes: the planned peak; ``None`` for ways without a plan.
        plan: for ways that follow one.
    """

    way: CheckpointWay
    batch: int
    size: int
    warm_up: int
    planned_bytes: int | None = None
    plan: Plan | None = None


@dataclass(frozen=True)
class Settings:
    """What all steps have in common.

    Attributes:
        device: that the model is on.
        threads: of torch's operators.
        seed: of weights, inputs and gradients.
        memory_limit: bytes that the process may take.
        channels_last: whether images are in that order.
    """

    device: str
    threads: int
    seed: int
    memory_limit: int
    channels_last: bool = False

    @property
    def setup(self) -> Setup:
        """How models and inputs are made."""
        return Setup(torch.device(self.device), self.seed, self.channels_last)


def measure(architecture: Architecture, jobs: Sequence[Job], settings: Settings, found: Callable[[Peak], None]) -> None:
    """Measures steps of a model, one after another, in one process; a new one where it ended without an answer.

    Args:
        architecture: the model.
        jobs: the steps.
        settings: common to all.
        found: called with each peak, or with why there is none.
    """
    common: dict[str, Any] = {"settings": asdict(settings), "threads": settings.threads}
    with Child() as child:
        for job in jobs:
            plan = None if job.plan is None else job.plan.to_json()
            blank = Peak(architecture.name, job.way.name, job.batch, job.size, None, job.planned_bytes, job.warm_up)
            found(child.measure(measure_here, blank, way=asdict(job.way), plan=plan, **common))


def measure_here(peak: Peak, *, way: Mapping[str, Any], plan: str | None, settings: Mapping[str, Any]) -> Peak:
    """Measures one step in this process, which may take so much memory from the first of them on.

    Args:
        peak: without the measured one.
        way: as ``dataclasses.asdict`` makes it of a ``CheckpointWay``.
        plan: for ways that follow one, as JSON.
        settings: as ``dataclasses.asdict`` makes them of ``Settings``.
    """
    setup = Settings(**settings).setup
    if setup.device.type == "cpu":
        _limit(settings["memory_limit"])
    count = counters(setup.device)
    if isinstance(count, str):
        return replace(peak, failure=count)
    step = ARCHITECTURES[peak.model], CheckpointWay(**way), None if plan is None else Plan.from_json(plan)
    return replace(peak, peak_bytes=_measured(peak, *step, setup, count))


@cache  # a process has one limit
def _limit(nbytes: int) -> None:
    limit_allocation(nbytes)


def _measured(
    peak: Peak, architecture: Architecture, way: CheckpointWay, plan: Plan | None, setup: Setup, count: Counters
) -> int:
    model = build(architecture, setup)
    forward = ready(way, model, architecture.blocks(model), plan)
    loss(forward, make_inputs(architecture, peak.warm_up, peak.size, setup), setup.seed).backward()
    inputs = make_inputs(architecture, peak.batch, peak.size, setup)
    return peak_bytes(model, lambda: loss(forward, inputs, setup.seed), count)
