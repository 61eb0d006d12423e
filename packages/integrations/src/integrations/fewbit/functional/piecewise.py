"""Piecewise linear activations: torch's values and gradients, bit for bit, from one bit an element."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import actcore
from integrations._utils.in_place import placed
from integrations.fewbit.functional.bands import band
from integrations.fewbit.functional.conditions import keeps_few_bits, numbers


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.relu``, keeping 1 bit an element."""
    if not keeps_few_bits(input):
        return F.relu(input, inplace)
    return placed(actcore.relu(input), input, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.leaky_relu``, keeping 1 bit per element, and one byte per 1024 elements.

    The byte says whether one of them is NaN: then the gradients of those 1024 elements are NaN.
    """
    if not keeps_few_bits(input):
        return F.leaky_relu(input, negative_slope, inplace)
    # The interval from the least positive number on: torch gives zero the slope.
    least = math.ulp(0.0) if input.dtype == torch.float64 else 2.0**-149
    levels = (*numbers(negative_slope), 1.0)
    output = actcore.stepwise(input, "leaky_relu", (least,), levels, parameters=levels[:1], guard="nan")
    return placed(output, input, inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.threshold``, keeping 1 bit an element."""
    return _band("threshold", input, (threshold, value), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.hardsigmoid``, keeping 1 bit an element."""
    return _band("hardsigmoid", input, (), inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.hardtanh``, keeping 1 bit an element."""
    return _band("hardtanh", input, (min_val, max_val), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``torch.nn.functional.relu6``, keeping 1 bit an element."""
    return _band("relu6", input, (), inplace)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``torch.nn.functional.hardshrink``, keeping 1 bit an element."""
    return _band("hardshrink", input, (lambd,))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``torch.nn.functional.softshrink``, keeping 1 bit an element."""
    return _band("softshrink", input, (lambd,))


def _band(name: str, input: Tensor, parameters: tuple[float, ...], inplace: bool = False) -> Tensor:
    parameters = numbers(*parameters)
    # Nothing is above an infinite threshold, so there is no interval to tell.
    told = all(map(math.isfinite, parameters)) or (name == "hardtanh" and not any(map(math.isnan, parameters)))
    if not keeps_few_bits(input) or not told:
        options: dict[str, Any] = {"inplace": True} if inplace else {}
        output: Tensor = getattr(F, name)(input, *parameters, **options)
        return output
    return placed(band(input, name, parameters), input, inplace)
