"""What a derivative of few bits does to the gradient, as numbers that a plan can weigh against other roundings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from integrations.fewbit.apart import fitted_apart
from integrations.fewbit.catalogue import FUNCTIONS
from integrations.fewbit.fit import estimate_error
from integrations.fewbit.representatives import saved_steps, saves_one
from integrations.fewbit.tables import table

# Points from -10 to 10 for a mean over N(0, 1). The sum over even points converges faster than any power of their
# distance for an analytic function that dies away; a jump costs half of what lies in one distance, a part in 5,000.
_POINTS = 20_001


def slope_error(function: str, bits: int, parameters: Sequence[float] = (), weight: str = "uniform") -> float:
    """The squared relative error of the gradient that goes through an activation, from its derivative of few bits.

    The mean of ``(f'(x) - level)²`` over that of ``f'(x)²``, for ``x`` of N(0, 1) and gradients that know nothing of
    ``x``. Nothing is drawn: an element's error is the same in each step, and does not average out as a rounding's does.

    Args:
        function, bits, parameters, weight: as for ``table``.

    Raises:
        TypeError, ValueError: as ``table``.
    """
    table(function, bits, parameters, weight)
    given = _given(function, parameters)
    return _error(function, bits, given, weight) / _moments(function, given)[0]


def slope_noise(function: str, bits: int, parameters: Sequence[float] = (), weight: str = "uniform") -> float:
    """The noise on what an activation saves that would do its gradient the same harm.

    Noise is the variance of a rounding relative to the mean square of what is rounded. A rounding by ``e`` of what is
    saved, ``s``, moves the derivative by ``e * df'/ds``, so the harm of few bits, the mean of ``(f'(x) - level)²``, is
    that of the noise ``mean of (f'(x) - level)² / (mean of (df'/ds)² * mean of s²)``, for ``x`` of N(0, 1). What torch
    saves is the result of sigmoid and tanh, and the input of the others. Where a derivative jumps, that is no part of
    ``df'/ds``: a rounding that is meant to serve such a function keeps the side of each element.

    Args:
        function, bits, parameters, weight: as for ``table``.

    Raises:
        TypeError, ValueError: as ``table``.
    """
    table(function, bits, parameters, weight)
    given = _given(function, parameters)
    return _error(function, bits, given, weight) / _moments(function, given)[1]


def _given(function: str, parameters: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, parameters)) or tuple(FUNCTIONS[function].defaults.values())


@fitted_apart(512)
def _error(function: str, bits: int, parameters: tuple[float, ...], weight: str) -> float:
    steps = saved_steps(function, bits, parameters, weight, saves_one(function) == "result")
    return estimate_error(function, steps, weight="normal", parameters=parameters)


@fitted_apart(128)
def _moments(function: str, parameters: tuple[float, ...]) -> tuple[float, float]:
    """The means of ``f'(x)²``, and of ``(df'/ds)²`` times that of ``s²``."""
    x = torch.linspace(-10.0, 10.0, _POINTS, dtype=torch.float64).requires_grad_()
    with torch.enable_grad():
        result = FUNCTIONS[function].call(x, *parameters)
        [slope] = torch.autograd.grad(result.sum(), x, create_graph=True)
        [curvature] = torch.autograd.grad(slope.sum(), x)
    saved = x.detach()
    if saves_one(function) == "result":
        saved, curvature = result.detach(), curvature / slope.detach()
    share = torch.exp(-x.detach().square() / 2)
    share /= share.sum()
    slope_square, curvature_square, square = (
        float((share * each.square()).sum()) for each in (slope.detach(), curvature, saved)
    )
    return slope_square, curvature_square * square
