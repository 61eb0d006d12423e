"""How wrong the gradient is: measured with a closure, or predicted by the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from integrations._utils.random_states import random_states
from integrations.api.handle.closures import NothingCompressed, require_closure, require_compressed
from integrations.api.handle.handle_state import HandleState
from integrations.api.handle.rounding_layers import exact_layers, rounds_in_layers
from integrations.planner.sensitivity.trial_run import trial


@dataclass(frozen=True)
class GradientError:
    """The error of the whole gradient that compression causes.

    Attributes:
        relative: Euclidean norm of the error over that of the gradient; NaN if nothing predicts it.
        measured: whether it was measured, in one step; otherwise it is what the plan predicts on average.
        step: the number of the forward that it was measured in or before; ``None`` if that is not known.
    """

    relative: float
    measured: bool
    step: int | None = None

    def __str__(self) -> str:
        if math.isnan(self.relative) and not self.measured:
            return "relative error of the gradient: not known, since no parameter got a gradient when it was measured"
        how = "measured in one step" if self.step is None else f"measured in step {self.step}"
        how = how if self.measured else "predicted by the plan, not measured"
        return f"relative error of the gradient: {self.relative:.2g}, {how}"


def measure_error(handle: HandleState, closure: Callable[[], Any]) -> GradientError:
    """Runs a closure exactly and compressed, and compares the gradients. See ``Compression.gradient_error``."""
    require_closure(closure)
    require_compressed(handle, "gradient_error")
    if handle.off and not rounds_in_layers(handle.model):
        raise ValueError(
            f"level must be one that compresses, so that there is an error to measure, got {handle.level_name!r}; "
            "try level='L1'"
        )
    parameters = list(handle.model.parameters())
    with handle.trial_run(), trial(handle.model) as met:
        restore = random_states()
        with _paused(handle), exact_layers(handle.model):
            closure()
        exact = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        restore()
        met.draw_again()
        forwards = handle.step
        closure()
        if handle.step == forwards:
            raise NothingCompressed(handle.model)
        if all(grad is None for grad in exact):
            raise RuntimeError(
                "closure must run a forward of the compressed model and its backward; no parameter got a gradient"
            )
        gradient, error = 0.0, 0.0
        for parameter, expected in zip(parameters, exact, strict=True):
            if expected is not None:
                gradient += _square(expected)
                # In place: one more copy of the gradients, not two.
                error += _square(expected if parameter.grad is None else parameter.grad.sub_(expected))
    return GradientError((error / gradient) ** 0.5 if gradient else 0.0, measured=True)


@contextmanager
def _paused(handle: HandleState) -> Iterator[None]:
    """A block in which the model runs uncompressed."""
    handle._paused = True
    try:
        yield
    finally:
        handle._paused = False


def _square(tensor: Tensor) -> float:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square().item()
