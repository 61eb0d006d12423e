"""Functions of the user's own, evaluated where autograd does not look."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actcore.pointwise import PointwiseFunction


def value_of(function: PointwiseFunction, x: Tensor, parameters: Sequence[float] = ()) -> Tensor:
    """``function(x, *parameters)`` without history, in contiguous memory of its own.

    Raises:
        TypeError: it is no tensor, or of another dtype than ``x``.
        ValueError: it has another shape or device than ``x``, or ``x`` was changed in place.
    """
    given = x.detach()
    version = _version(given)
    value = function(given, *parameters)
    if _version(given) != version:
        raise ValueError("function must not change x in place; give the form of it that returns a new tensor")
    require_alike("function", value, x)
    return value.clone() if value is given else value.detach().contiguous()


def require_alike(name: str, value: object, x: Tensor) -> None:
    """Raises unless what ``name`` returned is a tensor of the shape, dtype and device of ``x``."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must return a tensor, got {type(value).__name__}")
    if value.dtype != x.dtype:
        raise TypeError(f"{name} must return the dtype of x, {x.dtype}, got {value.dtype}; cast with .to(x.dtype)")
    if value.shape != x.shape:
        raise ValueError(
            f"{name} must be applied to each element and return the shape of x, {tuple(x.shape)}, got "
            f"{tuple(value.shape)}"
        )
    if value.device != x.device:
        raise ValueError(f"{name} must return a tensor on the device of x, {x.device}, got {value.device}")


def _version(x: Tensor) -> int:
    """Counts changes in place, where somebody counts them."""
    return 0 if torch.compiler.is_compiling() or x.is_inference() else x._version
