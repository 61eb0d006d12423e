"""The tables of the functions in ``FUNCTIONS``: those shipped, and those of other parameters, fitted when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from integrations._utils.torch_internals import constant_when_traced
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.fitting import DOMAIN, Parity, approximate, checked_bits
from integrations.policies.codebooks.isolated_fit import fitted_apart
from integrations.policies.codebooks.objective import WEIGHTS
from integrations.policies.codebooks.shipped import SMOOTH, shipped_levels, shipped_table
from integrations.policies.codebooks.slopes import list_numbers
from integrations.policies.codebooks.steps import LevelTable, StepTable


def table(
    function: str,
    bits: int,
    parameters: Sequence[float] = (),
    weight: str = "uniform",
    parity: Parity | None = None,
) -> StepTable:
    """The best step function of ``2**bits`` levels for the derivative of a smooth function in ``FUNCTIONS``.

    The tables for default parameters come with the package, for both weights, over -10 to 10; ``approximate`` makes
    them (``python -m integrations.fewbit regenerate``). For other parameters it runs once in a process, which takes
    some tenths of a second. A parameter that only stretches the axis, softplus's beta or celu's alpha, stretches the
    table of ``weight="uniform"``, domain included, so that it fits inputs of the parameter's scale.

    Beyond the domain the last levels hold. All derivatives are constant there, except squared_relu's, which grows
    without bound: fit it to the inputs' own domain (``approximate("squared_relu", bits, domain=...)``).

    Args:
        function: a name of ``FUNCTIONS``, of a function that is not piecewise linear.
        bits: 1 to 8.
        parameters: in torch's order; empty for the defaults.
        weight: ``"uniform"``, the paper's, or ``"normal"`` for inputs of N(0, 1).
        parity: ``None`` for steps of ``|x|`` where the derivative is even; ``"none"`` for steps of ``x`` there, too.

    Raises:
        TypeError: ``bits`` is not an int.
        ValueError: an unknown or a piecewise linear function, bits out of range, parameters that the function does not
            take, or an unknown weight.
    """
    given = _checked(function, bits, parameters, weight)
    even = FUNCTIONS[function].even and parity != "none"
    if parity not in (None, "none", "even") or (parity == "even" and not even):
        known = '"even", "none" or None' if even else '"none" or None'
        raise ValueError(f"parity of {function} must be {known}, got {parity!r}")
    if given == _defaults(function):
        return shipped_table(function, bits, weight, even)
    if weight == "uniform" and function == "celu" and given[0] > 0:
        return _stretched(shipped_table(function, bits, weight, even), given[0])
    if weight == "uniform" and function == "softplus" and given[0] != 0:
        beta, threshold = given
        # Beyond beta * x = threshold the derivative is 1. Outside the domain of beta = 1, only the side matters.
        inside = threshold if DOMAIN[0] < threshold < DOMAIN[1] else math.copysign(20.0, threshold)
        if given != (1.0, inside):
            return _stretched(table(function, bits, (1.0, inside), weight), 1 / beta)
    return _fitted(function, bits, given, weight)


def level_table(function: str, bits: int, parameters: Sequence[float] = (), weight: str = "uniform") -> LevelTable:
    """The best codebook for rounding the derivative at random, of the functions, parameters and weights of ``table``.

    Raises:
        TypeError, ValueError: as ``table``.
    """
    given = _checked(function, bits, parameters, weight)
    if given == _defaults(function):
        return shipped_levels(function, bits, weight)
    return _fitted_levels(function, bits, given, weight)


# A table holds numbers, not tensors. Decorators above the functions would lose their types.
constant_when_traced(table)
constant_when_traced(level_table)


@fitted_apart(1024)
def _fitted(function: str, bits: int, parameters: tuple[float, ...], weight: str) -> StepTable:
    return approximate(function, bits, parameters=parameters, weight=weight)


@fitted_apart(1024)
def _fitted_levels(function: str, bits: int, parameters: tuple[float, ...], weight: str) -> LevelTable:
    return approximate(function, bits, parameters=parameters, weight=weight, rounding="stochastic")


def _stretched(unstretched: StepTable, factor: float) -> StepTable:
    """The table of ``f'(x / factor)``."""
    boundaries = tuple(boundary * factor for boundary in unstretched.boundaries)
    if factor < 0:
        return StepTable(boundaries[::-1], unstretched.levels[::-1], unstretched.even)
    return StepTable(boundaries, unstretched.levels, unstretched.even)


def _defaults(function: str) -> tuple[float, ...]:
    return tuple(FUNCTIONS[function].defaults.values())


def _checked(function: str, bits: int, parameters: Sequence[float], weight: str) -> tuple[float, ...]:
    """The parameters, the defaults where there are none."""
    if function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(SMOOTH)}, got {function!r}; approximate() fits others")
    if FUNCTIONS[function].piecewise:
        raise ValueError(
            f"function must be a smooth one, but {function} is piecewise linear and its derivative needs no fit; "
            f"fewbit.functional.{function} keeps it exactly"
        )
    checked_bits(bits)
    if weight not in WEIGHTS:
        raise ValueError(
            f"weight must be {' or '.join(map(repr, WEIGHTS))}, got {weight!r}; approximate() takes functions, too"
        )
    given = list_numbers(parameters)
    defaults = FUNCTIONS[function].defaults
    if given and len(given) != len(defaults):
        raise ValueError(
            f"parameters of {function} must be {len(defaults)} numbers ({', '.join(defaults) or 'it has none'}), got "
            f"{len(given)}"
        )
    if not all(map(math.isfinite, given)):
        raise ValueError(f"parameters of {function} must be finite, got {given}")
    return given or _defaults(function)
