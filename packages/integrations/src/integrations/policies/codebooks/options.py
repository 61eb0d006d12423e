"""The options of the functions beside torch's arguments, and the steps that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from integrations._utils.torch_internals import FakeTensor, disable_current_modes
from integrations.policies.codebooks.objective import WEIGHTS
from integrations.policies.codebooks.steps import StepTable

DEFAULT_BITS = 3

Rounding = Literal["nearest", "stochastic"]


class Options(TypedDict, total=False):
    """Keywords of the smooth functions and their modules.

    Attributes:
        bits: of the derivative, 1 to 8; ``None`` for 3, or for as many as ``table`` or ``values`` need.
        borders: ``Float["k"]`` with ``values`` ``Float["k+1"]``: steps in place of the function's own. The ends of a
            domain may be there: ``Float["k+2"]``, of which the first and the last are left out. Both are sequences of
            numbers or tensors.
        values: the derivative in each interval; see ``borders``.
        table: the same as a ``StepTable``, whose steps may be of ``|x|``.
        weight: by which distribution of inputs the function's own steps are the best ones; see ``table``.
        rounding: ``"nearest"``, the method of the paper: each derivative is the best level for its interval.
            ``"stochastic"``: one of the two levels around it at random, so that the expected derivative is exact.
        seed: of the random rounding; ``None`` draws one from torch's generator of the input's device.
        stream: separates calls with the same seed.
    """

    bits: int | None
    borders: Tensor | list[float] | tuple[float, ...] | None
    values: Tensor | list[float] | tuple[float, ...] | None
    table: StepTable | None
    weight: Any
    rounding: Rounding
    seed: int | None
    stream: int


@dataclass(frozen=True)
class Steps:
    """A step function as ``actcore.stepwise`` takes it, which finds out how many bits it needs."""

    boundaries: Tensor
    levels: Tensor
    even: bool = False


def check_keywords(options: Options) -> None:
    """Raises ``TypeError`` for a keyword that ``Options`` does not have, or what ``check_options`` does."""
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(
                f"unknown keyword {name!r}; besides torch's arguments, pass {', '.join(Options.__annotations__)}"
            )
    check_options(**options)


def check_options(
    bits: int | None = None,
    borders: Any = None,
    values: Any = None,
    table: StepTable | None = None,
    weight: Any = "uniform",
    rounding: str = "nearest",
    seed: int | None = None,
    stream: int = 0,
) -> None:
    """Raises ``TypeError`` or ``ValueError`` for options that do not go together."""
    if bits is not None and type(bits) is not int:
        raise TypeError(f"bits must be an int from 1 to 8, or None for {DEFAULT_BITS}, got {bits!r}")
    if bits is not None and not 1 <= bits <= 8:
        raise ValueError(f"bits must be from 1 to 8, or None for {DEFAULT_BITS}, got {bits}")
    if not isinstance(weight, str) or weight not in WEIGHTS:
        raise ValueError(
            f"weight must be {' or '.join(map(repr, WEIGHTS))}, got {weight!r}; for another one give "
            "table=fewbit.approximate(..., weight=...)"
        )
    for name, number in (("seed", seed), ("stream", stream)):
        if not isinstance(number, int) and (name == "stream" or number is not None):
            raise TypeError(f"{name} must be an int{' or None' * (name == 'seed')}, got {number!r}")
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding must be 'nearest' or 'stochastic', got {rounding!r}")
    if (borders is None) != (values is None):
        given, missing = ("borders", "values") if values is None else ("values", "borders")
        raise ValueError(f"borders and values must be given together, got {given} alone; give {missing}, too")
    if table is not None and not isinstance(table, StepTable):
        raise TypeError(f"table must be a StepTable or None, got {type(table).__name__}")
    own = [name for name, value in (("bits", bits), ("borders", borders), ("table", table)) if value is not None]
    if len(own) > 1:
        raise ValueError(
            f"bits, borders with values, and table each choose the steps: give one of them, got {' and '.join(own)}"
        )
    if rounding == "stochastic" and len(own) == 1 and own != ["bits"]:
        raise ValueError(
            "rounding='stochastic' chooses its own levels, which cover the derivative's range; pass bits instead of "
            f"{own[0]}"
        )


def check_approximate(approximate: str) -> None:
    """Raises ``ValueError`` for a form of GELU that torch does not have."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")


def user_steps(borders: Any, values: Any, x: Tensor) -> Steps:
    """Steps of FewBit's form, where ``borders`` may hold the two ends of the domain."""
    inner, levels = trimmed(borders, values)
    if not isinstance(inner, Tensor) and not isinstance(levels, Tensor):
        return move_table(StepTable(tuple(map(float, inner)), tuple(map(float, levels))), x)
    return Steps(inner, levels)


def trimmed(borders: Any, levels: Any) -> tuple[Any, Any]:
    """The borders without the ends of the domain, where they have them, and the levels.

    Raises:
        ValueError: their numbers do not fit together.
    """
    if len(borders) == len(levels) + 1:
        borders = borders[1:-1]
    elif len(borders) != len(levels) - 1:
        raise ValueError(
            "borders must be one fewer than the levels, or one more with the two ends of the domain, got "
            f"{len(borders)} borders and {len(levels)} levels"
        )
    if len(levels) > 256:
        raise ValueError(f"levels must be at most 256, the most that 8 bits can encode, got {len(levels)}")
    return borders, levels


def move_table(table: StepTable, x: Tensor) -> Steps:
    """A table on the device of ``x``."""
    return Steps(constant(table.boundaries, x), constant(table.levels, x), table.even)


def constant(numbers: tuple[float, ...], x: Tensor) -> Tensor:
    """The numbers on the device of ``x``, in the dtype in which it is computed. They are made once: a copy to a device
    waits."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    of_its_own = isinstance(x, FakeTensor) and not x.fake_mode.allow_non_fake_inputs
    if torch.compiler.is_compiling() or of_its_own:
        return torch.tensor(numbers, dtype=dtype, device=x.device)
    return _made(numbers, dtype, x.device)


@lru_cache(maxsize=1024)
def _made(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Without the active modes, such as fake tensors', and without inference mode, whose tensors autograd does not save.
    with disable_current_modes(), torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)
