"""One model in one way, measured in another process (``python -m bench.systems.cell``)."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

import integrations
from bench.errors import DoesNotApply, reason
from bench.gradients import relative_error
from bench.memory import step_peak_bytes
from bench.process_memory import Counters, counters, release_cached
from bench.step_clock import steps_in_turn
from bench.systems.device import figures, profiled, with_workspaces
from bench.systems.results import Cell, Fresh
from bench.systems.subject import Subject
from bench.systems.subjects import made
from bench.systems.ways import PLAIN, WAYS, Forward, Surroundings
from bench.workers import Ended, Worker, serve
from integrations.checkpoint import Plan, plan_of

REPEATS = 3  # peaks, of which the median is taken
WARM_UP = 3  # steps that pay for caches, and for the plans of levels that adapt

Taken = TypeVar("Taken", Cell, Fresh)
Trained: TypeAlias = tuple[nn.Module, Callable[[], Tensor]]
"""A model, and its forward down to the loss."""

_MODULE = "bench.systems.cell"  # of the child process; this file's name for itself is __main__ there


@dataclass(frozen=True)
class Request:
    """What to measure of a cell.

    Attributes:
        cell: what it is of; what it has, is measured anew.
        rounds: of timed steps; 0 measures memory and the gradient alone.
        device: ``"cpu"`` or ``"cuda"``.
        threads: of torch's operators.
        seed: of weights and inputs.
        figures: whether to measure the device's, too.
        timed: whether steps are timed and nothing else is measured.
        plan: as JSON, that steps follow; empty: what the way makes.
    """

    cell: Cell
    rounds: int
    device: str
    threads: int
    seed: int
    figures: bool = False
    timed: bool = False
    plan: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Request:
        """From what ``dataclasses.asdict`` made of one."""
        return cls(**{**content, "cell": Cell.of(content["cell"])})


class Processes:
    """Those that measure cells. On a CPU, memory is measured under the allocator's setting, by which each block is
    mapped and goes back to the kernel at once; that takes up to a third of a step, so times are measured without it."""

    def __init__(self) -> None:
        self._sized, self._timed = Worker(_MODULE), Worker(_MODULE, environment={})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def measure(self, request: Request, seconds: float | None = None) -> Cell:
        """Measures a cell; a crash of a process is said in the answer.

        Args:
            request: what to measure.
            seconds: after which the process at work is killed; ``None``: never.

        Raises:
            TooLong: it was.
        """
        try:
            if not request.rounds or request.figures or request.device == "cuda":
                return self._asked(self._sized, request, seconds)[0]
            # Plans are made where times are those of training: they follow from the rates that they measure.
            start = time.monotonic()
            found, plan = self._asked(self._timed, replace(request, timed=True), seconds)
            if found.failure or found.does_not_apply:
                return found
            self._timed.end()
            request = replace(request, cell=found, rounds=0, plan=plan)
            left = None if seconds is None else max(0.0, seconds - (time.monotonic() - start))
            return self._asked(self._sized, request, left)[0]
        except Ended as error:
            return replace(request.cell, failure=str(error))

    def end(self) -> None:
        """Ends the processes; the next cell starts others."""
        self._sized.end()
        self._timed.end()

    def _asked(self, process: Worker, request: Request, seconds: float | None) -> tuple[Cell, str]:
        """The cell, and the plan that its steps followed."""
        found = process.ask(asdict(request), seconds)
        return Cell.of(found["cell"]), found["plan"]


def measure_here(request: Request) -> Cell:
    """The same in this process. What fails is said in the answer."""
    return _measured_with_plan(request)[0]


def _measured_with_plan(request: Request) -> tuple[Cell, str]:
    cell, device = request.cell, torch.device(request.device)
    try:
        subject = made(cell.subject, request.seed, device)
        with subject.precisely():
            measured = _timed_alone if request.timed else _measured
            found = measured(request, replace(cell, what=subject.what), subject, device)
            return found, "" if WAYS[cell.way].budget is None else plan_of(subject.model).to_json()
    except DoesNotApply as error:
        return replace(cell, does_not_apply=str(error)), ""
    except Exception as error:  # whatever one cell fails with, others are to be measured
        return replace(cell, failure=reason(error)), ""


def _measured(request: Request, cell: Cell, subject: Subject, device: torch.device) -> Cell:
    seed, count = request.seed, _counters(device)
    step = _ready(request, subject)
    whole, adding = partial(_whole, subject.model, step), partial(_adding, step)
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
    plain_step = _step(plain, *WAYS[PLAIN].ready(plain), seed)
    if not (WAYS[cell.way].draws and _drops(plain.model)):
        cell = _with_errors(cell, (plain.model, plain_step), (subject.model, step))
    cell = _with_times(request, cell, (plain.model, plain_step), (subject.model, step), device)
    return cell if found is None else replace(cell, figures=profiled(found, whole, device))


def _timed_alone(request: Request, cell: Cell, subject: Subject, device: torch.device) -> Cell:
    step = _ready(request, subject)
    plain = made(cell.subject, request.seed, device)
    plain_step = _step(plain, *WAYS[PLAIN].ready(plain), request.seed)
    for _ in range(WARM_UP):
        _whole(subject.model, step)
    return _with_times(request, cell, (plain.model, plain_step), (subject.model, step), device)


def _ready(request: Request, subject: Subject) -> Callable[[], Tensor]:
    """A subject's forward in the request's way, down to the loss."""
    ready = partial(_following, request.plan) if request.plan else WAYS[request.cell.way].ready
    return _step(subject, *ready(subject), request.seed)


def _following(plan: str, subject: Subject) -> tuple[Forward, Surroundings]:
    return integrations.apply(subject.model, Plan.from_json(plan)), nullcontext


def _with_errors(cell: Cell, plain: Trained, ours: Trained) -> Cell:
    """With the gradient's error in both states of the gradients."""
    errors = []
    for run in (_adding_to_zeros, _whole):
        exact, gradient = (_gradient(model, partial(run, model, step)) for model, step in (plain, ours))
        errors.append(relative_error(gradient, exact))
    return replace(cell, error=errors[0], fresh=replace(cell.fresh or Fresh(), error=errors[1]))


def _with_times(request: Request, cell: Cell, plain: Trained, ours: Trained, device: torch.device) -> Cell:
    """With times of plain steps and of those in the cell's way, in turn."""
    if not request.rounds:
        return cell
    cell = _timed(cell, [partial(_adding, step) for _, step in (plain, ours)], request.rounds, device)
    if request.figures:  # a device that has figures measured is lent for minutes
        return cell
    steps = [partial(_whole, *one) for one in (plain, ours)]
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


def _step(subject: Subject, forward: Forward, surroundings: Surroundings, seed: int) -> Callable[[], Tensor]:
    """A forward, down to the loss; dropout draws the same in each."""

    def step() -> Tensor:
        torch.manual_seed(seed)
        with surroundings():
            return subject.step(forward)

    return step


def _whole(model: nn.Module, step: Callable[[], Tensor]) -> None:
    """A step that finds no gradients."""
    model.zero_grad(set_to_none=True)
    step().backward()


def _adding_to_zeros(model: nn.Module, step: Callable[[], Tensor]) -> None:
    """A step that adds to gradients, which are its own in the end."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    step().backward()


def _adding(step: Callable[[], Tensor]) -> None:
    """A step that adds to the gradients that it finds."""
    step().backward()


def _counters(device: torch.device) -> Counters:
    """
    Raises:
        RuntimeError: nothing counts bytes here.
    """
    found = counters(device)
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def _drops(model: nn.Module) -> bool:
    """Whether a model has layers that draw which elements to drop."""
    return any(isinstance(module, nn.Dropout) and module.p for module in model.modules())


def _gradient(model: nn.Module, step: Callable[[], None]) -> list[Tensor]:
    step()
    return [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in model.parameters()]


def _answer(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the worker's process does with a request."""
    request = Request.of(content)
    torch.set_num_threads(request.threads)
    cell, plan = _measured_with_plan(request)
    torch._dynamo.reset()  # what is compiled holds the model
    gc.collect()
    if request.device == "cuda" and not cell.failure:  # what failed may have left the device in no state to ask
        release_cached()
    return {"cell": asdict(cell), "plan": plan}


if __name__ == "__main__":
    serve(_answer, iter(sys.stdin))
