"""Which autocast is on, and casts as it makes them, outside of our Functions, so that what a Function saves is what it
computes with. ``fresh_casts``: a block in which autocast casts the weights anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVarTuple

import torch
from torch import Tensor

from integrations._utils.torch_internals import (
    constant_when_traced,
    dispatch_has_kernel_for_dispatch_key,
    is_any_autocast_enabled,
)

Tensors = TypeVarTuple("Tensors")
"""Tensors, with ``None`` for missing ones."""


def as_matmul(*tensors: *Tensors) -> tuple[*Tensors]:
    """Arguments of a convolution or a linear layer, in autocast's dtype if it is on."""
    kind = _device(tensors)
    return _cast(tensors, torch.get_autocast_dtype(kind)) if kind and torch.is_autocast_enabled(kind) else tensors


def in_float32(operator: str, *tensors: *Tensors) -> tuple[*Tensors]:
    """Arguments of an operator that autocast computes in float32: cast if autocast is on and knows the operator.

    Args:
        operator: with its overload, such as ``"aten::layer_norm"``.
        tensors: the first one that is not ``None`` tells the device.
    """
    kind = _device(tensors)
    return _cast(tensors, torch.float32) if kind and is_known(operator, kind) else tensors


@constant_when_traced  # up to torch 2.11 torch.compile does not trace the question
def is_available(device: str) -> bool:
    """Whether there is autocast for this type of device, on or off."""
    return torch.amp.is_autocast_available(device)


def is_known(operator: str, device: str) -> bool:
    """Whether autocast is on for this type of device and has a rule for the operator there. It knows all operators that
    it computes in float32 on CUDA, and few of them on the CPU."""
    return torch.is_autocast_enabled(device) and dispatch_has_kernel_for_dispatch_key(
        operator, f"Autocast{device.upper()}"
    )


def _device(tensors: tuple[Any, ...]) -> str:
    for tensor in tensors:
        if tensor is not None and is_available(tensor.device.type):
            return str(tensor.device.type)
    return ""


def _cast(tensors: tuple[Any, ...], dtype: torch.dtype) -> Any:
    """Casts all tensors except float64 and integers, which autocast leaves alone."""
    return tuple(
        tensor
        if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64
        else tensor.to(dtype)
        for tensor in tensors
    )


def autocast_on(device: torch.device) -> torch.dtype | None:
    """The dtype of the autocast on a device; ``None`` without one, as always on ``meta``."""
    on = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


@contextmanager
def autocast_as_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """``torch.autocast`` for tensors without elements, whose device need not be here: torch's own leaves autocast off
    where there is no GPU."""
    if device != "cuda" or torch.cuda.is_available():
        with torch.autocast(device, dtype=dtype):
            yield
        return
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    depth = torch.autocast_increment_nesting() - 1
    try:
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_enabled(device, True)
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.autocast_decrement_nesting()
        if depth == 0:
            torch.clear_autocast_cache()


def dtype_of_product(tensor: Tensor) -> torch.dtype:
    """The dtype in which a linear layer computes with a tensor."""
    narrow = autocast_on(tensor.device)
    return tensor.dtype if narrow is None or tensor.dtype == torch.float64 else narrow


@contextmanager
def fresh_casts() -> Iterator[None]:
    """A block in which autocast's cache starts empty. A forward that finds casts of an earlier one runs other operators
    than one that makes them."""
    kept = is_any_autocast_enabled() and torch.is_autocast_cache_enabled()
    if kept:
        torch.clear_autocast_cache()
    try:
        yield
    finally:
        if kept:
            torch.clear_autocast_cache()
