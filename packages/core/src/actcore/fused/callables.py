"""Functions of the user's own, evaluated where autograd does not look."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from actcore.pointwise import PointwiseFunction


def value_of(
    function: PointwiseFunction, x: Tensor, parameters: Sequence[float] = (), name: str = "function"
) -> Tensor:
    """``function(x, *parameters)`` without history, in contiguous memory of its own. ``name`` is what errors call it.

    Raises:
        TypeError: it is no tensor, or of another dtype than ``x``.
        ValueError: it has another shape or device than ``x``, or ``x`` was changed in place.
    """
    given = x.detach()
    return _own(called(function, given, parameters, name), given)


def called(function: PointwiseFunction, given: Tensor, parameters: Sequence[float], name: str = "function") -> Tensor:
    """``function(given, *parameters)``, which may be ``given`` itself. Raises what ``value_of`` does."""
    version = _version(given)
    value = function(given, *parameters)
    if _version(given) != version:
        raise ValueError(f"{name} must not change x in place; pass a function that returns a new tensor")
    _require_alike(name, value, given)
    return value


def value_and_derivative(
    function: PointwiseFunction, x: Tensor, parameters: Sequence[float], derivative: PointwiseFunction | None
) -> tuple[Tensor, Tensor]:
    """``function(x, *parameters)``, and ``derivative`` of the same or else torch's, both without history.

    Raises what ``value_of`` does; torch's error where a function without ``derivative`` changes ``x`` in place.
    """
    if derivative is not None:
        return value_of(function, x, parameters), value_of(derivative, x, parameters, "derivative")
    given = x.detach()
    if torch.compiler.is_compiling():  # there torch.autograd.grad is no part of a graph
        value, pull = torch.func.vjp(lambda x: function(x, *parameters), given)[:2]
        _require_alike("function", value, x)
        (slope,) = pull(torch.ones_like(value))
    else:
        # Not torch.func.vjp, which fails where saved tensors have hooks. What is saved here is none of theirs.
        with torch.enable_grad(), _without_hooks():
            value = function(given.requires_grad_(), *parameters)
            _require_alike("function", value, x)
            if value.requires_grad:
                (slope,) = torch.autograd.grad(value, given, torch.ones_like(value), materialize_grads=True)
            else:
                slope = torch.zeros_like(value)
    return _own(value, given), slope.detach().contiguous()


def _without_hooks() -> AbstractContextManager[None]:
    """Saved tensors are kept as they are. torch.func forbids hooks, those of the outside and these."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return nullcontext()
    return saved_tensors_hooks(_itself, _itself)


def _itself(saved: Tensor) -> Tensor:
    return saved


def _require_alike(name: str, value: object, x: Tensor) -> None:
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


def _own(value: Tensor, x: Tensor) -> Tensor:
    """``value`` without history, in contiguous memory that is not that of ``x``: others may change it in place."""
    value = value.detach()
    if torch.compiler.is_compiling():
        # A tensor of its own in the graph, too: where a Function's output is also a value within it, torch 2.11 loses
        # the gradient without a word. Whoever fuses operators has no copy to make here.
        return value.clone(memory_format=torch.contiguous_format)
    if value.is_contiguous() and torch._C._is_alias_of(value, x):  # type: ignore[attr-defined]
        return value.clone()
    return value.contiguous()


def _version(x: Tensor) -> int:
    """Counts changes in place, where somebody counts them."""
    return 0 if torch.compiler.is_compiling() or x.is_inference() else x._version
