"""Integers and truth values that a forward may look at are computed even where the rest is fake.

Masks, positions and indices decide which way a forward takes: transformers' models look whether a mask masks, and
attend without one if it does not. They are small beside what is fake, and depend on nothing that is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from integrations.checkpoint.dispatch.memory import tensors_of
from integrations.checkpoint.dispatch.operators import Traits

_MOST = 1 << 24
"""Elements: a larger tensor is fake."""


def is_index(tensor: Tensor) -> bool:
    """Whether it is of integers or truth values, and no larger than those that are computed."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() <= _MOST


def call(function: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an operator of a forward on fake tensors: on elements, if all that it reads and makes are indices."""
    if traits.random or not traits.known or not _on_indices(function, args, kwargs):
        return function(*args, **kwargs)
    with unset_fake_temporarily():
        return function(*args, **kwargs)


def _on_indices(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [*tensors_of(args), *tensors_of(kwargs.values())]
    if any(isinstance(tensor, FakeTensor) or not is_index(tensor) for tensor in given):
        return False
    dtype = kwargs.get("dtype")
    if isinstance(dtype, torch.dtype):
        made_of_indices = not dtype.is_floating_point and not dtype.is_complex
    else:
        # Without a dtype, these make integers of integers, truth values of what they compare, and now and then a
        # fraction, as small as they are.
        made_of_indices = bool(given) or function.overloadpacket is torch.ops.aten.arange
    return made_of_indices and _elements(args) <= _MOST


def _elements(args: tuple[Any, ...]) -> int:
    """Of a factory's size, if that is what it is given."""
    if args and isinstance(args[0], (list, tuple)) and all(isinstance(size, int) for size in args[0]):
        return math.prod(args[0])
    return 0
