"""The training steps of a cell: forward and backward with gradients in one state or another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.models.subject import Subject
from bench.runner.process_memory import Counters, counters
from bench.ways.general import Forward, Surroundings


def make_step(subject: Subject, forward: Forward, surroundings: Surroundings, seed: int) -> Callable[[], Tensor]:
    """A forward, down to the loss; dropout draws the same in each."""

    def step() -> Tensor:
        torch.manual_seed(seed)
        with surroundings():
            return subject.step(forward)

    return step


def run_fresh(model: nn.Module, step: Callable[[], Tensor]) -> None:
    """A step that finds no gradients."""
    model.zero_grad(set_to_none=True)
    step().backward()


def run_adding_to_zeros(model: nn.Module, step: Callable[[], Tensor]) -> None:
    """A step that adds to gradients, which are its own in the end."""
    set_zero_gradients(model)
    step().backward()


def set_zero_gradients(model: nn.Module) -> None:
    """Gives each parameter that is trained a gradient of zeros."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def run_adding(step: Callable[[], Tensor]) -> None:
    """A step that adds to the gradients that it finds."""
    step().backward()


def require_counters(device: torch.device) -> Counters:
    """
    Raises:
        RuntimeError: nothing counts bytes here.
    """
    found = counters(device)
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def drops(model: nn.Module) -> bool:
    """Whether a model has layers that draw which elements to drop."""
    return any(isinstance(module, nn.Dropout) and module.p for module in model.modules())


def gradient_of(model: nn.Module, step: Callable[[], None]) -> list[Tensor]:
    """The gradients that a step leaves, zeros for parameters that have none."""
    step()
    return [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in model.parameters()]
