"""``activation``: any scalar function that the user gives, with fitted steps for its derivative."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

import actcore
from integrations.fewbit.functional.conditions import keeps_few_bits
from integrations.policies.codebooks.fitting import approximate
from integrations.policies.codebooks.isolated_fit import fitted_apart
from integrations.policies.codebooks.options import DEFAULT_BITS, Rounding, check_options, constant, move_table
from integrations.policies.codebooks.steps import LevelTable, StepTable

ScalarFunction = Callable[[Tensor], Tensor]


def activation(
    input: Tensor,
    function: ScalarFunction,
    bits: int | None = None,
    *,
    table: StepTable | LevelTable | None = None,
    weight: str | Callable[[Tensor], Tensor] = "uniform",
    rounding: Rounding = "nearest",
    seed: int | None = None,
    stream: int = 0,
) -> Tensor:
    """Compute ``function(input)`` with a step function as derivative, keeping ``bits`` bits per element.

    ::

        y = fewbit.functional.activation(x, torch.sin, bits=4)

    The steps are fitted at the first call, which takes some tenths of a second, and cached for the function: pass the
    same object each time, not a new lambda. Inside of ``torch.compile`` pass
    ``table=fewbit.approximate(function, bits)``, or use ``fewbit.Activation``, which does this. Other tensors that the
    function uses, such as a parameter, get no gradient.

    Args:
        input: any shape.
        function: a differentiable, elementwise torch function.
        bits: 1 to 8; ``None`` for 3, or for as many as ``table`` needs.
        table: the result of ``approximate``; for stochastic rounding a ``LevelTable``.
        weight: see ``approximate``.
        rounding, seed, stream: see ``Options``.

    Raises:
        TypeError: ``function`` is not callable.
        ValueError: ``function`` is not elementwise, has no derivative, or one that is not finite from -10 to 10 (then
            fit it over another domain and pass ``table``); ``bits`` is out of range.
    """
    check_arguments(function, bits, table, rounding)
    if not keeps_few_bits(input):
        return function(input)
    if rounding == "stochastic":
        codebook = table if isinstance(table, LevelTable) else fitted_levels(function, bits or DEFAULT_BITS, weight)
        levels = constant(codebook.levels, input)
        return actcore.round_to_levels(input, function, levels, seed=seed, stream=stream, guard="nonfinite")
    steps = move_table(
        table if isinstance(table, StepTable) else fitted_steps(function, bits or DEFAULT_BITS, weight), input
    )
    return actcore.stepwise(input, function, steps.boundaries, steps.levels, even=steps.even, guard="nonfinite")


def check_arguments(function: object, bits: int | None, table: object, rounding: str) -> None:
    """Raises ``TypeError`` or ``ValueError`` for what ``activation`` does not take."""
    if not callable(function):
        raise TypeError(f"function must be a torch function such as torch.sin, got {function!r}")
    check_options(bits=bits, rounding=rounding)
    if table is None:
        return
    if bits is not None:
        raise ValueError("bits and table each choose the steps: give one of them, got both")
    kind = LevelTable if rounding == "stochastic" else StepTable
    if not isinstance(table, kind):
        raise TypeError(f"table must be a {kind.__name__} for rounding={rounding!r}, got {type(table).__name__}")


@fitted_apart(64)
def fitted_steps(function: ScalarFunction, bits: int, weight: str | Callable[[Tensor], Tensor]) -> StepTable:
    """The steps of a user's function."""
    return approximate(function, bits, weight=weight)


@fitted_apart(64)
def fitted_levels(function: ScalarFunction, bits: int, weight: str | Callable[[Tensor], Tensor]) -> LevelTable:
    """The levels for rounding the derivative of a user's function at random."""
    return approximate(function, bits, weight=weight, rounding="stochastic")
