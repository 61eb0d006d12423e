"""A function's value as torch computes it of a tensor that is not contiguous."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from actcore.fused.callables import called
from actcore.pointwise import PointwiseFunction


@dataclass(frozen=True, eq=False)
class AsLaidOut:
    """A function of ``x`` where it lies, for operators that are given its elements in memory order.

    On the CPU torch computes elements that do not lie side by side by other instructions, and GELU by another library:
    the last digits differ from those of a contiguous copy.

    Attributes:
        function: of each element.
        x: without history.
        order: of ``in_memory_order``.
    """

    function: PointwiseFunction
    x: Tensor
    order: list[int] | None

    def __call__(self, ordered: Tensor, *parameters: float) -> Tensor:
        """The values in memory order, which are those of ``ordered``, but for the last digits."""
        value = called(self.function, self.x, parameters)
        return value if self.order is None else value.permute(self.order)


def lies_apart(x: Tensor) -> bool:
    """Whether torch may compute other last digits for ``x`` than for a contiguous copy of it.

    Compiled code has digits of its own, and what lies where inside of ``torch.func`` only its transforms know.
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and not x.is_contiguous()
        and torch._C._functorch.peek_interpreter_stack() is None
    )
