"""One model in one way, measured in another process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

import integrations
from bench.models.subject import Subject
from bench.runner.child import Child
from bench.runner.clock import steps_in_turn
from bench.runner.gradients import relative_error
from bench.runner.memory import step_peak_bytes
from bench.runner.process_memory import Counters, release_cached
from bench.suites.memory.systems.device import captured, figures, profiled, with_workspaces
from bench.suites.memory.systems.entries import Cell, Fresh
from bench.suites.memory.systems.steps import (
    drops,
    gradient_of,
    make_step,
    require_counters,
    run_adding,
    run_adding_to_zeros,
    run_fresh,
)
from bench.suites.memory.systems.subjects import made
from bench.ways.general import PLAIN, WAYS, Forward, Surroundings
from integrations.checkpoint import Plan, plan_of

REPEATS = 3  # peaks, of which the median is taken
WARM_UP = 3  # steps that pay for caches, and for the plans of levels that adapt

Taken = TypeVar("Taken", Cell, Fresh)
Trained: TypeAlias = tuple[nn.Module, Callable[[], Tensor]]
"""A model, and its forward down to the loss."""


@dataclass(frozen=True)
class Request:
    """What to measure of a cell.

    Attributes:
        rounds: of timed steps; 0 measures memory and the gradient alone.
        device: ``"cpu"`` or ``"cuda"``.
        seed: of weights and inputs.
        figures: whether to measure the device's, too.
        timed: whether steps are timed and nothing else is measured.
        plan: as JSON, that steps follow; empty: what the way makes.
    """

    rounds: int
    device: str
    seed: int
    figures: bool = False
    timed: bool = False
    plan: str = ""


class Processes:
    """Those that measure cells. On a CPU, memory is measured under the allocator's setting, by which each block is
    mapped and goes back to the kernel at once; that takes up to a third of a step, so times are measured without it.

    Args:
        threads: of torch's operators.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._sized, self._timed = Child(), Child(environment={})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def measure(self, cell: Cell, request: Request, seconds: float | None = None) -> Cell:
        """Measures a cell; a crash of a process is said in the answer.

        Args:
            cell: which.
            request: what to measure of it.
            seconds: after which the process at work is killed; ``None``: never.

        Raises:
            TooLong: it was.
        """
        if request.timed:
            return self._asked(self._timed, cell, request, seconds)[0]
        if not request.rounds or request.figures or request.device == "cuda":
            return self._asked(self._sized, cell, request, seconds)[0]
        # Plans are made where times are those of training: they follow from the rates that they measure.
        start = time.monotonic()
        found, plan = self._asked(self._timed, cell, replace(request, timed=True), seconds)
        if found.failure or found.does_not_apply:
            return found
        self._timed.end()
        left = None if seconds is None else max(0.0, seconds - (time.monotonic() - start))
        return self._asked(self._sized, found, replace(request, rounds=0, plan=plan), left)[0]

    def end(self) -> None:
        """Ends the processes; the next cell starts others."""
        self._sized.end()
        self._timed.end()

    def _asked(self, process: Child, cell: Cell, request: Request, seconds: float | None) -> tuple[Cell, Any]:
        return process.measure_with(measure, cell, seconds, threads=self._threads, **asdict(request))


def measure(cell: Cell, **options: Any) -> tuple[Cell, str]:
    """Measures a cell in this process. What it has is measured anew, but for its times where none are asked for.

    Args:
        cell: which.
        **options: of a ``Request``.

    Returns:
        The cell, and the plan that its steps followed, as JSON; empty where there is none.

    Raises:
        DoesNotApply: the way is none for this model.
    """
    request = Request(**options)
    device = torch.device(request.device)
    torch._dynamo.reset()  # of a cell before: what is compiled holds its model
    gc.collect()
    if device.type == "cuda":
        release_cached()
    subject = made(cell.subject, request.seed, device)
    with subject.precisely():
        measured = _timed_alone if request.timed else _measured
        found = measured(request, replace(cell, what=subject.what), subject, device)
        return found, "" if WAYS[cell.way].budget is None else plan_of(subject.model).to_json()


def _measured(request: Request, cell: Cell, subject: Subject, device: torch.device) -> Cell:
    seed, count = request.seed, require_counters(device)
    step = _ready(request, cell.way, subject)
    whole, adding = partial(run_fresh, subject.model, step), partial(run_adding, step)
    for _ in range(WARM_UP):
        whole()
    # Fresh ones first: steps that add leave free memory in pieces, of which new objects take others, a MiB or two.
    cell = replace(cell, fresh=_with_peak(cell.fresh or Fresh(), whole, count, subject.model))
    cell = _with_peak(cell, adding, count, subject.model)
    whole()
    found = figures(step, whole, count, device) if request.figures else None
    if found is not None and cell.way == PLAIN and device.type == "cuda":
        found = with_workspaces(found, step)
    plain = made(cell.subject, seed, device)
    plain_step = make_step(plain, *WAYS[PLAIN].ready(plain), seed)
    if not (WAYS[cell.way].draws and drops(plain.model)):
        cell = _with_errors(cell, (plain.model, plain_step), (subject.model, step))
    cell = _with_times(request, cell, (plain.model, plain_step), (subject.model, step), device)
    if found is None:
        return cell
    return replace(cell, figures=captured(profiled(found, whole, device), step, device))  # last: it may leave anything


def _timed_alone(request: Request, cell: Cell, subject: Subject, device: torch.device) -> Cell:
    step = _ready(request, cell.way, subject)
    plain = made(cell.subject, request.seed, device)
    plain_step = make_step(plain, *WAYS[PLAIN].ready(plain), request.seed)
    for _ in range(WARM_UP):
        run_fresh(subject.model, step)
    return _with_times(request, cell, (plain.model, plain_step), (subject.model, step), device)


def _ready(request: Request, way: str, subject: Subject) -> Callable[[], Tensor]:
    """A subject's forward in the request's way, down to the loss."""
    ready = partial(_following, request.plan) if request.plan else WAYS[way].ready
    return make_step(subject, *ready(subject), request.seed)


def _following(plan: str, subject: Subject) -> tuple[Forward, Surroundings]:
    return integrations.apply(subject.model, Plan.from_json(plan)), nullcontext


def _with_errors(cell: Cell, plain: Trained, ours: Trained) -> Cell:
    """With the gradient's error in both states of the gradients."""
    errors = []
    for run in (run_adding_to_zeros, run_fresh):
        exact, gradient = (gradient_of(model, partial(run, model, step)) for model, step in (plain, ours))
        errors.append(relative_error(gradient, exact))
    return replace(cell, error=errors[0], fresh=replace(cell.fresh or Fresh(), error=errors[1]))


def _with_times(request: Request, cell: Cell, plain: Trained, ours: Trained, device: torch.device) -> Cell:
    """With times of plain steps and of those in the cell's way, in turn."""
    if not request.rounds:
        return cell
    cell = _timed(cell, [partial(run_adding, step) for _, step in (plain, ours)], request.rounds, device)
    if request.figures:  # a device that has figures measured is lent for minutes
        return cell
    steps = [partial(run_fresh, *one) for one in (plain, ours)]
    return replace(cell, fresh=_timed(cell.fresh or Fresh(), steps, request.rounds, device))


def _timed(cell: Taken, steps: Sequence[Callable[[], None]], rounds: int, device: torch.device) -> Taken:
    """With the times of a plain step and of one in the cell's way."""
    plain_seconds, seconds = steps_in_turn(steps, rounds, device)
    return replace(cell, seconds=seconds, plain_seconds=plain_seconds)


def _with_peak(cell: Taken, step: Callable[[], None], count: Counters, model: nn.Module) -> Taken:
    """With the activation peak of a step, and with that by the plan that it follows, if there is one."""
    cell = replace(cell, peak_bytes=int(statistics.median(step_peak_bytes(step, count) for _ in range(REPEATS))))
    try:
        plan = plan_of(model)
    except ValueError:
        return cell
    return replace(cell, planned_bytes=plan.peak, planned_plain_bytes=plan.plain_peak)
