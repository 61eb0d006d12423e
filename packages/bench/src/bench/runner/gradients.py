"""Gradients of one step, and how far two differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bench.models.subject import Case


def backward(case: Case, generator: Tensor) -> None:
    """One step's gradients, with the dropout that torch's generator has in the state ``generator``."""
    torch.set_rng_state(generator)
    case.model.zero_grad()
    case.loss().backward()


def gradient(case: Case, generator: Tensor) -> list[Tensor]:
    """The gradient of each parameter, zero for those that have none."""
    backward(case, generator)
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for parameter in case.model.parameters()
    ]


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The Euclidean norm of the difference of two whole gradients over that of the exact one."""
    error = sum((one - other).square().sum().item() for one, other in zip(found, exact, strict=True))
    norm = sum(expected.square().sum().item() for expected in exact)
    return float((error / norm) ** 0.5)
