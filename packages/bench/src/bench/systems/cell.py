"""One model in one way, measured in a process of its own (``python -m bench.systems.cell``)."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import Tensor, nn

from bench.errors import BenchError, reason
from bench.gradients import relative_error
from bench.kernels.clock import in_turn
from bench.memory import child_answer, peak_bytes
from bench.process_memory import counters
from bench.systems.results import Cell
from bench.systems.subjects import Subject, made
from bench.systems.ways import PLAIN, WAYS, DoesNotApply, Forward, Surroundings

REPEATS = 3  # peaks, of which the median is taken
WARM_UP = 3  # steps that pay for caches, and for the plans of levels that adapt

_MODULE = "bench.systems.cell"  # of the child process; this file's name for itself is __main__ there


def measure(cell: Cell, rounds: int, device: str, threads: int, seed: int) -> Cell:
    """Measures a cell in a new process; a crash of that process is said in the answer.

    Args:
        cell: what it is of; what it has, is measured anew.
        rounds: of timed steps; 0 measures memory and the gradient alone.
        device: ``"cpu"`` or ``"cuda"``.
        threads: of torch's operators.
        seed: of weights and inputs.
    """
    request = {"cell": asdict(cell), "rounds": rounds, "device": device, "threads": threads, "seed": seed}
    try:
        return Cell(**child_answer(_MODULE, request))
    except BenchError as error:
        return replace(cell, failure=str(error))


def measure_here(cell: Cell, rounds: int, device: torch.device, seed: int) -> Cell:
    """The same in this process. What fails is said in the answer."""
    try:
        subject = made(cell.subject, seed, device)
        cell = replace(cell, what=subject.what)
        step = _step(subject, *WAYS[cell.way].ready(subject), seed)
        cell = replace(cell, peak_bytes=_peak(subject.model, step, device))
        plain = made(cell.subject, seed, device)
        plain_step = _step(plain, *WAYS[PLAIN].ready(plain), seed)
        steps = [partial(_whole, plain.model, plain_step), partial(_whole, subject.model, step)]
        exact, found = (_gradient(model, run) for model, run in zip((plain.model, subject.model), steps, strict=True))
        cell = replace(cell, error=relative_error(found, exact))
        if rounds:
            plain_seconds, seconds = in_turn(steps, rounds, device)
            cell = replace(cell, seconds=seconds, plain_seconds=plain_seconds)
    except DoesNotApply as error:
        return replace(cell, does_not_apply=str(error))
    except Exception as error:  # whatever one cell fails with, others are to be measured
        return replace(cell, failure=reason(error))
    return cell


def _step(subject: Subject, forward: Forward, surroundings: Surroundings, seed: int) -> Callable[[], Tensor]:
    """A forward, down to the loss; dropout draws the same in each."""

    def step() -> Tensor:
        torch.manual_seed(seed)
        with surroundings():
            return subject.step(forward)

    return step


def _whole(model: nn.Module, step: Callable[[], Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    step().backward()


def _peak(model: nn.Module, step: Callable[[], Tensor], device: torch.device) -> int:
    """The activation peak.

    Raises:
        RuntimeError: nothing counts bytes here.
    """
    found = counters(device)
    if isinstance(found, str):
        raise RuntimeError(found)
    for _ in range(WARM_UP):
        _whole(model, step)
    return int(statistics.median(peak_bytes(model, step, found) for _ in range(REPEATS)))


def _gradient(model: nn.Module, step: Callable[[], None]) -> list[Tensor]:
    step()
    return [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in model.parameters()]


def _child(text: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(text)
    torch.set_num_threads(wanted["threads"])
    found = measure_here(Cell(**wanted["cell"]), wanted["rounds"], torch.device(wanted["device"]), wanted["seed"])
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    _child(sys.argv[1])
