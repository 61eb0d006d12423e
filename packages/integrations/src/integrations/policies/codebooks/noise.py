"""How much a derivative of few bits harms the gradient, as numbers that a plan can weigh against other roundings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.fitting import estimate_error
from integrations.policies.codebooks.isolated_fit import fitted_apart
from integrations.policies.codebooks.representatives import saved_steps, saves_one
from integrations.policies.codebooks.tables import table

# Points within 8 deviations, for a mean over a normal distribution. For an analytic function that vanishes at the ends,
# the sum over even points converges faster than any power of their distance; a jump costs half of the distance.
_POINTS, _DEVIATIONS = 20_001, 8.0


def slope_error(
    function: str, bits: int, parameters: Sequence[float] = (), weight: str = "uniform", spread: float = 1.0
) -> float:
    """The squared relative error of the gradient through an activation whose derivative has few bits.

    It is the mean of ``(f'(x) - level)²`` over that of ``f'(x)²``, for normally distributed ``x`` and gradients that
    are independent of ``x``. Nothing is drawn: an element's error is the same in each step, and does not average out as
    that of a random rounding does.

    Args:
        function, bits, parameters, weight: as for ``table``.
        spread: the standard deviation of ``x``.

    Raises:
        TypeError, ValueError: as ``table``.
        ValueError: a spread that is not positive.
    """
    given = _checked(function, bits, parameters, weight, spread)
    return _error(function, bits, given, weight, spread) / _moments(function, given, spread)[0]


def slope_noise(
    function: str, bits: int, parameters: Sequence[float] = (), weight: str = "uniform", spread: float = 1.0
) -> float:
    """The noise on what an activation saves that would harm its gradient as much.

    Noise is the variance of a rounding relative to the mean square of what is rounded. A rounding by ``e`` of what is
    saved, ``s``, changes the derivative by ``e * df'/ds``. So few bits, whose harm is the mean of ``(f'(x) - level)²``,
    are as harmful as the noise ``mean of (f'(x) - level)² / (mean of (df'/ds)² * mean of s²)``, for normally
    distributed ``x``. Torch saves the result of sigmoid and tanh, and the input of other functions. A jump of the
    derivative is not part of ``df'/ds``: a rounding for such a function has to keep the side of each element.

    The steps of a table do not adapt to the inputs as the bounds of a group do, so the noise depends on the spread:
    GELU's 3 bits have the noise of 3 bits of the elements if their deviation is 0.3, and that of 4.5 bits if it is 1.

    Args:
        function, bits, parameters, weight: as for ``table``.
        spread: the standard deviation of ``x``.

    Raises:
        TypeError, ValueError: as ``table``.
        ValueError: a spread that is not positive.
    """
    given = _checked(function, bits, parameters, weight, spread)
    return _error(function, bits, given, weight, spread) / _moments(function, given, spread)[1]


def _checked(function: str, bits: int, parameters: Sequence[float], weight: str, spread: float) -> tuple[float, ...]:
    table(function, bits, parameters, weight)
    if not 0 < spread < math.inf:
        raise ValueError(f"spread must be a positive number, the standard deviation of the inputs, got {spread}")
    return tuple(map(float, parameters)) or tuple(FUNCTIONS[function].defaults.values())


@fitted_apart(512)
def _error(function: str, bits: int, parameters: tuple[float, ...], weight: str, spread: float) -> float:
    def density(x: Tensor) -> Tensor:
        return torch.exp(-(x / spread).square() / 2) / (spread * math.sqrt(2 * math.pi))

    steps = saved_steps(function, bits, parameters, weight, saves_one(function) == "result")
    domain = (-_DEVIATIONS * spread, _DEVIATIONS * spread)
    return estimate_error(function, steps, weight=density, domain=domain, parameters=parameters)


@fitted_apart(128)
def _moments(function: str, parameters: tuple[float, ...], spread: float) -> tuple[float, float]:
    """The means of ``f'(x)²``, and of ``(df'/ds)²`` times that of ``s²``."""
    deviations = torch.linspace(-_DEVIATIONS, _DEVIATIONS, _POINTS, dtype=torch.float64)
    x = (deviations * spread).requires_grad_()
    with torch.enable_grad():
        result = FUNCTIONS[function].call(x, *parameters)
        [slope] = torch.autograd.grad(result.sum(), x, create_graph=True)
        [curvature] = torch.autograd.grad(slope.sum(), x)
    saved = x.detach()
    if saves_one(function) == "result":
        saved, curvature = result.detach(), curvature / slope.detach()
    share = torch.exp(-deviations.square() / 2)
    share /= share.sum()
    slope_square, curvature_square, square = (
        float((share * each.square()).nansum()) for each in (slope.detach(), curvature, saved)
    )
    return slope_square, curvature_square * square
