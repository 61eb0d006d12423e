"""The errors of few-bit derivatives, in the tables of ``docs/results/step-tables.md``.

python -m bench.suites.fewbit.step_errors tables --reference fewbit_errors.json
python -m bench.suites.fewbit.step_errors roundings gelu
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from integrations import fewbit

SMOOTH = tuple(name for name, function in fewbit.FUNCTIONS.items() if not function.piecewise)
WIDTHS = range(1, 9)
INPUTS, DRAWS = 1 << 14, 256
# The keys of a reference file: the error of FewBit's table, and of the optimum on a grid of 2,000 cells.
KEYS = {"uniform": ("shipped", "optimal"), "normal": ("shipped_gauss", "optimal_gauss")}

Errors = dict[str, dict[str, dict[str, float]]]
Rounding = Literal["nearest", "stochastic"]


# ---- the tables beside FewBit's ----


def table_errors(function: str, weight: str, parity: Literal["even", "none"] | None = None) -> list[float]:
    """Return the squared error of a function's table for each of 1 to 8 bits.

    Args:
        function: a name in ``SMOOTH``.
        weight: ``"uniform"`` or ``"normal"``.
        parity: ``"none"`` for steps of ``x``; by default those that are used, which are of ``|x|`` where the derivative
            is even.
    """
    tables = [fewbit.table(function, bits, weight=weight, parity=parity) for bits in WIDTHS]
    return [fewbit.estimate_error(function, steps, weight=weight) for steps in tables]


def read_reference(path: Path) -> Errors:
    """Read the errors of FewBit's tables and of the optimum, by function and bits.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    try:
        functions: Errors = json.loads(path.read_text(encoding="utf-8"))["functions"]
        for by_bits in functions.values():
            for row in by_bits.values():
                [float(row[key]) for keys in KEYS.values() for key in keys]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold errors by function and bits: {error!r}") from error
    return functions


def errors_table(reference: Errors, weight: str) -> str:
    """Return a table in Markdown: FewBit's error / the optimum's / ours, or ours alone where FewBit has no table.

    A function with an even derivative has a second row for the steps of ``|x|``.
    """
    theirs, optimum = KEYS[weight]
    names = [f"{bits} bit{'s' * (bits > 1)}" for bits in WIDTHS]
    lines = [f"| function | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for name in SMOOTH:
        cells = []
        for bits, error in zip(WIDTHS, table_errors(name, weight, "none"), strict=True):
            row = reference.get(name, {}).get(str(bits))
            before = f"{row[theirs]:.3g} / {row[optimum]:.3g} / " if row else ""
            cells.append(f"{before}**{error:.3g}**")
        lines.append(f"| {name} | {' | '.join(cells)} |")
        if fewbit.FUNCTIONS[name].even:
            cells = [f"**{error:.3g}**" for error in table_errors(name, weight)]
            lines.append(f"| {name}, parity | {' | '.join(cells)} |")
    return "\n".join(lines)


# ---- both roundings ----


@dataclass(frozen=True)
class RoundingError:
    """The error ``e(x) = level - f'(x)`` of a derivative, over inputs of N(0, 1).

    Attributes:
        bits: of the derivative.
        rounding: ``"nearest"`` or ``"stochastic"``.
        weight: by which the steps or levels were fitted.
        bias: the root of the mean over ``x`` of ``E[e(x)]**2``: an element's error that is left after many steps.
        deviation: the root of the mean over ``x`` of ``Var[e(x)]``: the part that averages out.
        mean: the mean over ``x`` of ``E[e(x)]``: the error of a sum of gradients, per element.
    """

    bits: int
    rounding: str
    weight: str
    bias: float
    deviation: float
    mean: float


def rounding_errors(function: str, bits: Sequence[int] = (1, 2, 3, 4), draws: int = DRAWS) -> list[RoundingError]:
    """Measure both roundings, with tables for uniform and for normal inputs.

    Each of 16,384 inputs is rounded ``draws`` times. The bias that this finite number adds is taken off again.

    Raises:
        ValueError: an unknown or a piecewise linear function, bits out of range.
    """
    if function not in SMOOTH:
        raise ValueError(f"function must be one of {', '.join(SMOOTH)}, got {function!r}")
    x = torch.randn(INPUTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for width in bits:
        for weight in ("uniform", "normal"):
            steps = fewbit.table(function, width, weight=weight)
            levels = fewbit.level_table(function, width, weight=weight)
            ways: list[tuple[Rounding, fewbit.StepTable | fewbit.LevelTable, int]]
            ways = [("nearest", steps, 1), ("stochastic", levels, draws)]
            for rounding, table, count in ways:
                errors = _slope_errors(function, table, rounding, x.repeat(count)).view(count, -1)
                found.append(RoundingError(width, rounding, weight, *_bias_deviation_mean(errors)))
    return found


def roundings_table(errors: Sequence[RoundingError]) -> str:
    """Return the errors as a table."""
    lines = [f"{'bits':4}  {'rounding':10}  {'fitted to':9}  {'bias':>8}  {'deviation':>9}  {'mean':>8}"]
    for error in errors:
        name = f"{error.bits:4}  {error.rounding:10}  {error.weight:9}"
        lines.append(f"{name}  {error.bias:8.5f}  {error.deviation:9.5f}  {error.mean:+8.5f}")
    return "\n".join(lines)


def _slope_errors(name: str, table: fewbit.StepTable | fewbit.LevelTable, rounding: Rounding, x: Tensor) -> Tensor:
    function = fewbit.FUNCTIONS[name].call
    x = x.clone().requires_grad_()
    few = fewbit.functional.activation(x, function, table=table, rounding=rounding, seed=0)
    [found], [exact] = (torch.autograd.grad(output.sum(), x) for output in (few, function(x)))
    return found - exact


def _bias_deviation_mean(errors: Tensor) -> tuple[float, float, float]:
    """Return a ``RoundingError``'s numbers from the errors of each draw, a row for each."""
    variance = float(errors.var(0).mean()) if len(errors) > 1 else 0.0
    mean = errors.mean(0)
    bias = max(0.0, float(mean.square().mean()) - variance / len(errors))
    return bias**0.5, variance**0.5, float(mean.mean())


# ---- the command ----


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table. Return 0, or 1 after one line on stderr that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.suites.fewbit.step_errors", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="TABLE")
    tables = commands.add_parser("tables", help="errors of the shipped tables beside FewBit's and the optimum")
    tables.add_argument("--reference", type=Path, required=True, metavar="FILE", help="fewbit_errors.json")
    tables.add_argument("--weight", choices=tuple(KEYS), default="uniform", help="default: uniform")
    tables.set_defaults(text=lambda options: errors_table(read_reference(options.reference), options.weight))
    roundings = commands.add_parser("roundings", help="errors of both roundings, for inputs of N(0, 1)")
    roundings.add_argument("function", help=f"one of {', '.join(SMOOTH)}")
    roundings.set_defaults(text=lambda options: roundings_table(rounding_errors(options.function)))
    options = parser.parse_args(arguments)
    try:
        print(options.text(options))
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
