"""Functions whose gradient passes inside or outside of a band, or above a threshold: exact in one bit an element."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import actcore
from actcore.fused.functions import FusedFunction
from actcore.origins import note_origin, with_origin
from actcore.stored import announce_pointwise, stands_for
from integrations._utils.torch_internals import constant_when_traced
from integrations.policies.codebooks.options import constant

_ops = torch.ops.actcore

# A float32 in torch's backward of float64, too.
_SIXTH = float.fromhex("0x1.555556p-3")


def band(input: Tensor, function: str, parameters: tuple[float, ...] = ()) -> Tensor:
    """A function of the catalogue whose derivative is a constant in some places and 0 in the others.

    Values and gradients are torch's bit for bit, infinite inputs and gradients included, but for the sign of
    softshrink's zeros where ``input`` is not contiguous, which torch itself makes depend on the layout. Where ``input``
    is NaN the gradient is what torch's vectors compute, 0 for hardtanh and relu6, or for threshold and the shrinking
    functions, what it computes for single elements; these differ in torch itself.
    """
    low, high = _ends(function, parameters, input.dtype, input.device.type)
    ordered, order = actcore.in_memory_order(input)
    stands_for(ordered, input, function)
    output: Tensor = _Band.call(ordered, constant((low,), input), constant((high,), input), function, parameters)[0]
    return actcore.restored(output, order)


class _Band(FusedFunction):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, low: Tensor, high: Tensor, function: str, parameters: tuple[float, ...]) -> Any:
        if function == "softshrink":  # the sign of whose zeros follows from how torch cuts the tensor into vectors
            output, mask = F.softshrink(input, *parameters), _ops.stepwise_codes(input, low, 1)
        else:
            output, mask = _ops.stepwise(input, function, parameters, low, 1)
        # Inside of the band the first comparison holds, and not the second.
        mask = mask ^ _ops.stepwise_codes(input, high, 1)
        return output, mask.bitwise_not() if function in ("hardshrink", "softshrink", "threshold") else mask

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.slope = _SIXTH if inputs[3] == "hardsigmoid" else 1.0
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        announce_pointwise(ctx, inputs[0], output[0], inputs[3], "mask of 1 bit", output[1:])
        note_origin(ctx, inputs[0])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None, None, None, None
        (mask,) = ctx.saved_tensors
        passed = _Passed.call(gradients[0].contiguous(), mask, ctx.slope)
        return with_origin(ctx, passed), None, None, None, None


class _Passed(FusedFunction):
    """``gradient * slope`` where the bit is 1, and 0 elsewhere; its derivative is the same."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, mask: Tensor, slope: float) -> Any:
        return _ops.mask_backward(gradient, mask, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, mask, ctx.slope = inputs
        ctx.save_for_backward(mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return _Passed.call(gradients[0].contiguous(), mask, ctx.slope), None, None


@constant_when_traced
def _ends(function: str, parameters: tuple[float, ...], dtype: torch.dtype, device: str) -> tuple[float, float]:
    return _found(function, parameters, dtype, device)


@lru_cache
def _found(function: str, parameters: tuple[float, ...], dtype: torch.dtype, device: str) -> tuple[float, float]:
    """The least ``x`` of the band, and the least one above it, as torch's backward compares.

    It rounds the parameters to the dtype in which it computes, and for some functions to that of ``x``. The band of the
    shrinking functions and of threshold is where the gradient does not pass.
    """
    rounded = function in ("hardshrink", "softshrink") or (function == "threshold" and device != "cpu")
    computed = torch.float64 if dtype == torch.float64 else torch.float32

    def seen(number: float) -> Tensor:
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype if rounded else computed).to(computed)

    def above(number: float) -> float:
        return torch.nextafter(seen(number), torch.tensor(math.inf, dtype=computed, device="cpu")).item()

    if function == "hardsigmoid":
        low, high = above(-3.0), 3.0
    elif function in ("hardshrink", "softshrink"):
        low, high = -seen(parameters[0]).item(), above(parameters[0])
    elif function == "threshold":
        low, high = -math.inf, above(parameters[0])
    else:
        low, high = parameters or (0.0, 6.0)
        low, high = above(low), seen(high).item()
    return min(low, high), high
