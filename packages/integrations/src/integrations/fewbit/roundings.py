"""What each rounding of a derivative does to the gradient: ``python -m integrations.fewbit compare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from integrations._step_tables.catalogue import FUNCTIONS
from integrations._step_tables.options import Options
from integrations.fewbit.functional.rounded import rounded

_INPUTS, _DRAWS = 1 << 14, 256


@dataclass(frozen=True)
class RoundingError:
    """The error ``e(x) = level - f'(x)`` of a derivative, over inputs of N(0, 1).

    Attributes:
        bits: of the derivative.
        rounding: ``"nearest"`` or ``"stochastic"``.
        weight: by which the steps or levels were fitted.
        bias: the root of the mean over ``x`` of ``E[e(x)]**2``: what is left of an element's error after many steps.
        deviation: the root of the mean over ``x`` of ``Var[e(x)]``: what averages out.
        mean: the mean over ``x`` of ``E[e(x)]``: the error of a sum of gradients, per element.
    """

    bits: int
    rounding: str
    weight: str
    bias: float
    deviation: float
    mean: float


def compare(function: str, bits: Sequence[int] = (1, 2, 3, 4), seed: int = 0) -> list[RoundingError]:
    """Measures both roundings, with tables for uniform and for normal inputs.

    Each of 16,384 inputs is rounded 256 times; what the finite number of draws adds to the bias is taken off again.

    Args:
        function: a smooth one of ``FUNCTIONS``.
        bits: the widths to measure.
        seed: of the inputs and the rounding.

    Raises:
        ValueError: an unknown or a piecewise linear function, bits out of range.
    """
    if function not in FUNCTIONS or FUNCTIONS[function].piecewise:
        names = ", ".join(name for name, known in FUNCTIONS.items() if not known.piecewise)
        raise ValueError(f"function must be one of {names}, got {function!r}")
    x = torch.randn(_INPUTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = _slope(lambda x: FUNCTIONS[function].call(x), x)
    found = []
    for width in bits:
        for weight in ("uniform", "normal"):
            nearest: Options = {"bits": width, "weight": weight}
            found.append(_measured(function, x, exact, nearest, 1))
            found.append(_measured(function, x, exact, {**nearest, "rounding": "stochastic", "seed": seed}, _DRAWS))
    return found


def render(errors: Sequence[RoundingError]) -> str:
    """The errors as a table."""
    rows = [f"{'bits':4}  {'rounding':10}  {'fitted to':9}  {'bias':>8}  {'deviation':>9}  {'mean':>8}"]
    for error in errors:
        told = f"{error.bits:4}  {error.rounding:10}  {error.weight:9}"
        rows.append(f"{told}  {error.bias:8.5f}  {error.deviation:9.5f}  {error.mean:+8.5f}")
    return "\n".join(rows)


def _measured(function: str, x: Tensor, exact: Tensor, options: Options, draws: int) -> RoundingError:
    slopes = _slope(lambda x: rounded(function, x, (), options), x.repeat(draws)).view(draws, -1)
    variance = float(slopes.var(0).mean()) if draws > 1 else 0.0
    error = slopes.mean(0) - exact
    bias = max(0.0, float(error.square().mean()) - variance / draws)
    return RoundingError(
        options["bits"] or 0,
        options.get("rounding", "nearest"),
        options["weight"],
        bias**0.5,
        variance**0.5,
        float(error.mean()),
    )


def _slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    at = x.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at)[0]
