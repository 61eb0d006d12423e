"""``Approximated``: the layer of another library that has a formula of its own for a function that we know."""

from __future__ import annotations

from torch import Tensor

from integrations._utils.layer_replacement import remembered
from integrations._utils.unscriptable import Unscriptable
from integrations.fewbit.functional.activation import activation
from integrations.policies.codebooks.options import Rounding
from integrations.policies.codebooks.tables import level_table, table


class Approximated(Unscriptable):
    """What ``convert`` puts in the place of such a layer. Its forward is that layer's, bit for bit; backward has the
    steps of the function in ``FUNCTIONS`` that it computes.

    Args:
        function: that function's name.
        bits: of the derivative, 1 to 8.
        rounding, weight: see ``fewbit.GELU``.
    """

    def __init__(self, function: str, bits: int = 3, rounding: Rounding = "nearest", weight: str = "uniform") -> None:
        super().__init__()
        self.function, self.bits, self.rounding = function, bits, rounding
        self.table = (table if rounding == "nearest" else level_table)(function, bits, weight=weight)

    def forward(self, input: Tensor) -> Tensor:
        original = remembered(self)
        assert original is not None
        if not self.training:
            return original.forward(input)  # type: ignore[no-any-return]
        return activation(input, original.forward, table=self.table, rounding=self.rounding)

    def extra_repr(self) -> str:
        """Whose formula it is, and the bits."""
        return f"{type(remembered(self)).__name__}, function={self.function!r}, bits={self.bits}"
