"""Activations that the user defines, as layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from integrations._utils.unscriptable import Unscriptable
from integrations.fewbit.functional.activation import ScalarFunction, activation, check_arguments
from integrations.fewbit.functional.stepwise import Numbers, piecewise_linear, step_table
from integrations.policies.codebooks.fitting import approximate
from integrations.policies.codebooks.options import DEFAULT_BITS, Rounding
from integrations.policies.codebooks.steps import LevelTable, StepTable


class Activation(Unscriptable):
    """``function(x)`` with a step function as derivative, for any scalar function. The steps are fitted when the layer
    is created.

    ::

        fewbit.Activation(lambda x: x * torch.sin(x), bits=4)

    In ``eval()`` it calls the function, and gradients are exact. It has no buffers.

    Args:
        function, weight, rounding: see ``fewbit.functional.activation``. A layer of a lambda cannot be pickled.
        bits: 1 to 8; ``None`` for 3, or for as many as ``table`` needs.
        table: the result of ``fewbit.approximate`` for the function, for example over another domain.
    """

    def __init__(
        self,
        function: ScalarFunction,
        bits: int | None = None,
        *,
        rounding: Rounding = "nearest",
        table: StepTable | LevelTable | None = None,
        weight: str | Callable[[Tensor], Tensor] = "uniform",
    ) -> None:
        check_arguments(function, bits, table, rounding)
        super().__init__()
        self.function, self.rounding = function, rounding
        if table is None:
            table = _fitted(function, bits or DEFAULT_BITS, weight, rounding)
        self.table = table

    @property
    def bits(self) -> int:
        """Bits of the derivative."""
        return self.table.bits

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return self.function(input)
        return activation(input, self.function, table=self.table, rounding=self.rounding)

    def extra_repr(self) -> str:
        """The function's name, and the bits."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"{name}, bits={self.bits}" + ("" if self.rounding == "nearest" else f", rounding={self.rounding!r}")


class Stepwise(Unscriptable):
    """The function whose derivative is a given step function: see ``fewbit.functional.stepwise``.

    Args:
        borders, levels, parity, shift: as there.
    """

    def __init__(
        self, borders: Numbers, levels: Numbers, parity: bool | None = None, shift: float | None = None
    ) -> None:
        super().__init__()
        self.table = step_table(borders, levels, parity, shift)

    def forward(self, input: Tensor) -> Tensor:
        return piecewise_linear(input, self.table)

    def extra_repr(self) -> str:
        """How many levels, and the bits that they take."""
        return f"levels={len(self.table.levels)}, bits={self.table.bits}" + (", even=True" if self.table.even else "")


def _fitted(function: ScalarFunction, bits: int, weight: Any, rounding: Rounding) -> StepTable | LevelTable:
    if rounding == "stochastic":
        return approximate(function, bits, weight=weight, rounding="stochastic")
    return approximate(function, bits, weight=weight)
