"""Corrects strides where torch's kernels for fake tensors give others than a device does. Copies follow from
strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload

_GROUP_NORM = torch.ops.aten.native_group_norm.default
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_on_device(func: OpOverload, args: tuple[Any, ...], out: Any) -> Any:
    """An operator's results on fake tensors, with the strides that they have on real ones.

    A CPU's group norm keeps channels last; torch 2.14's kernel for fake tensors returns channels first.
    """
    if func is not _GROUP_NORM or not isinstance(args[0], Tensor) or args[0].device.type != "cpu":
        return out
    given, last = args[0], _LAST.get(args[0].dim())
    if last is None or given.is_contiguous() or not given.is_contiguous(memory_format=last):
        return out
    return (out[0].contiguous(memory_format=last), *out[1:])
