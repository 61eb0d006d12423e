"""Parts ``memory`` and ``time``: steps of a network in one way, in a process of their own.

Weights are random: neither bytes nor times depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

import integrations
from bench.models.glue_networks import NETWORKS, blocks, from_scratch, random_batch
from bench.models.subject import Subject
from bench.runner.clock import steps_in_turn
from bench.runner.memory import saved_bytes, standing_peak_bytes, step_bytes
from bench.runner.process_memory import counters
from bench.suites.text.entries import Cell
from bench.ways import text as ways
from bench.ways.general import PLAIN, Surroundings

WARM_UP = 3  # steps that pay for caches, and for the plans of levels that adapt

_CLASSES = 2


def measure(cell: Cell, *, memory: bool, rounds: int, device: str) -> Cell:
    """Measures a cell in this process. What it has already stays.

    Args:
        cell: what it is of.
        memory: whether memory is measured.
        rounds: of timed steps; 0: none.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        DoesNotApply: the way is none for this network.
    """
    cell = _memory(cell, torch.device(device)) if memory else cell
    return _time(cell, rounds, torch.device(device)) if rounds else cell


def _memory(cell: Cell, device: torch.device) -> Cell:
    model, forward = _made(cell, device)
    for _ in range(WARM_UP):
        forward().backward()
    stored = original = None
    if ways.stores(cell.way):
        stored = integrations.compression(model).report().stored_bytes
    elif cell.way == PLAIN:
        original = saved_bytes(model, forward)
    live, peak, why = step_bytes(model, forward, forward, device)
    count = counters(device)
    gradients = sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)
    return replace(
        cell,
        original_bytes=original,
        stored_bytes=stored,
        live_bytes=live,
        peak_bytes=None if isinstance(count, str) else standing_peak_bytes(forward, count),
        whole_bytes=None if peak is None else peak + gradients,
        not_measured=why,
    )


def _time(cell: Cell, rounds: int, device: torch.device) -> Cell:
    plain, found = (_made(replace(cell, way=way), device) for way in (PLAIN, cell.way))
    steps = [partial(_step, *one) for one in (plain, found)]
    for _ in range(WARM_UP - 1):  # the clock has one of its own
        steps[1]()
    plain_seconds, seconds = steps_in_turn(steps, rounds, device)
    return replace(cell, seconds=seconds, plain_seconds=plain_seconds)


def _made(cell: Cell, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The network, ready to be trained in the cell's way, and its forward, down to the loss."""
    torch.manual_seed(0)
    network = NETWORKS[cell.model]
    model = from_scratch(network, _CLASSES).to(device)
    batch = random_batch(replace(network, length=cell.length), cell.batch, device)
    subject = Subject(model, batch, _loss, str(network), blocks(model))
    forward, surroundings = ways.ready(cell.way, subject, seed=0)
    return model, partial(_forward, subject, forward, surroundings)


def _forward(subject: Subject, forward: Callable[..., object], surroundings: Surroundings) -> Tensor:
    torch.manual_seed(0)  # of dropout
    with surroundings():
        return subject.step(forward)


def _loss(output: object) -> Tensor:
    loss = getattr(output, "loss", None)
    assert isinstance(loss, Tensor)
    return loss


def _step(model: nn.Module, forward: Callable[[], Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    forward().backward()
