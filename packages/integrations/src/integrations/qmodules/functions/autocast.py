"""Casts as torch's autocast makes them, outside of our Functions: a Function's saved input is what it computes with."""

from __future__ import annotations

import torch
from torch import Tensor


def as_matmul(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Arguments of a convolution or a linear layer: in autocast's dtype where it is on."""
    kind = _device(tensors)
    return _cast(tensors, torch.get_autocast_dtype(kind)) if kind and torch.is_autocast_enabled(kind) else tensors


def as_norm(operator: str, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Arguments of a normalisation: in float32 where autocast is on and knows the operator on that device."""
    kind = _device(tensors)
    if not kind or not torch.is_autocast_enabled(kind):
        return tensors
    # On CUDA it knows all of these, and on the CPU none.
    known = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", f"Autocast{kind.upper()}")
    return _cast(tensors, torch.float32) if known else tensors


def _device(tensors: tuple[Tensor | None, ...]) -> str:
    for tensor in tensors:
        if tensor is not None and torch.amp.is_autocast_available(tensor.device.type):
            return tensor.device.type
    return ""


def _cast(tensors: tuple[Tensor | None, ...], dtype: torch.dtype) -> tuple[Tensor | None, ...]:
    """All but float64 and integers, which autocast leaves alone."""
    return tuple(
        tensor
        if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64
        else tensor.to(dtype)
        for tensor in tensors
    )
