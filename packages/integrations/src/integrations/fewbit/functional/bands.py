"""Functions whose gradient passes inside or outside of a band, or above a threshold: exact in one bit an element."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import actcore
from integrations.fewbit.catalogue import FUNCTIONS

_SIXTH = float.fromhex("0x1.555556p-3")  # a float32 in torch's backward of float64, too


def band(input: Tensor, function: str, parameters: tuple[float, ...] = ()) -> Tensor:
    """A function of the catalogue whose derivative is a constant in some places and 0 in the others.

    Values and gradients are torch's bit for bit, infinite inputs and gradients included. Where ``input`` is NaN the
    gradient is what torch computes for single elements, which its vectors contradict for some functions. Inside of
    ``torch.func`` the mask is a byte an element.
    """
    output: Tensor = _Band.apply(input, function, parameters)
    return output


class _Band(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, function: str, parameters: tuple[float, ...]) -> Tensor:
        return FUNCTIONS[function].call(input, *parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        input, function, parameters = inputs
        ctx.slope = _SIXTH if function == "hardsigmoid" else 1.0
        # vmap cannot look whether a mask has but two values, as the codec does
        codec = actcore.BitMask() if torch._C._functorch.peek_interpreter_stack() is None else None
        actcore.save_for_backward(ctx, (_passes(input, function, parameters), codec))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (mask,) = actcore.saved_tensors_of(ctx)
        assert mask is not None
        gradient = gradients[0] if ctx.slope == 1 else gradients[0] * ctx.slope
        return torch.where(mask, gradient, 0.0), None, None


def _passes(x: Tensor, function: str, parameters: tuple[float, ...]) -> Tensor:
    """Where the gradient passes, as torch's backward decides it."""
    if function == "hardsigmoid":
        return (x > -3) & (x < 3)
    if function in ("hardshrink", "softshrink"):  # a number is rounded to the dtype of x, as torch does here
        (half,) = parameters
        inside: Tensor = (x >= -half) & (x <= half)
        return ~inside
    if function == "threshold":
        below = parameters[0]
        return ~(x <= (_largest_up_to(below, x.dtype) if x.device.type == "cpu" else below))
    low, high = (0.0, 6.0) if function == "relu6" else parameters
    outside: Tensor = (x <= _largest_up_to(low, x.dtype)) | (x >= -_largest_up_to(-high, x.dtype))
    return ~outside


@torch.compiler.assume_constant_result
def _largest_up_to(number: float, dtype: torch.dtype) -> float:
    """Where torch compares elements of half precision with a float32: the same place among the elements."""
    return _found(number, dtype)


@lru_cache
def _found(number: float, dtype: torch.dtype) -> float:
    if dtype.itemsize > 2:
        return number
    exact = torch.tensor(number, dtype=torch.float32, device="cpu")
    rounded = exact.to(dtype)
    if rounded > exact:
        rounded = torch.nextafter(rounded, rounded.new_full((), -torch.inf))
    return rounded.item()
