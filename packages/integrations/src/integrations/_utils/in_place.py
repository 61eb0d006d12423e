"""Puts a result into its input's memory, for layers with ``inplace=True``: others may look there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from actcore.stored import announce_placed
from integrations._utils.torch_internals import peek_interpreter_stack


def placed(output: Tensor, input: Tensor, inplace: bool) -> Tensor:
    """``output``, in the memory of ``input`` if that is asked for."""
    if not inplace:
        return output
    if torch.compiler.is_compiling() or peek_interpreter_stack() is not None:
        return input.copy_(output)
    if output is not input:
        announce_placed(output, input)
    result: Tensor = _PlacedCopy.apply(input, output)
    return result


class _PlacedCopy(Function):
    """``input.copy_(output)``, without the zeros that torch makes as a gradient of the overwritten values."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, output: Tensor) -> Tensor:
        ctx.mark_dirty(input)
        ctx.view = input._is_view()
        return input.copy_(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # Autograd puts a view's gradient into that of its base, and None there would drop the whole.
        return torch.zeros_like(gradients[0]) if ctx.view else None, gradients[0]
