"""``count_scratch``: the bytes that a kernel takes beside its arguments and results, where arithmetic tells them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload
from integrations.capture.costs.chunked import is_chunked_loss, scratch_of_chunks
from integrations.capture.costs.convolutions import convolution_scratch
from integrations.capture.costs.cuda_scratch import kernel_scratch_bytes

aten = torch.ops.aten
_SCATTERS = (aten.scatter_add, aten.scatter_add_, aten.scatter_reduce, aten.scatter_reduce_)
_ADDED = (aten.index_add, aten.index_add_)
_FEW_COLUMNS = 16  # rows of fewer are not sorted


def count_scratch(function: OpOverload, args: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    """Bytes that a call takes while it runs, as far as they are modelled; otherwise 0."""
    if is_chunked_loss(function):
        return scratch_of_chunks(args)
    if args and isinstance(args[0], Tensor) and args[0].device.type == "cuda":
        return kernel_scratch_bytes(function, args, results)
    packet = function.overloadpacket
    if packet in (aten.convolution, aten.convolution_backward):
        return convolution_scratch(packet is aten.convolution_backward, args, results)
    return _sorted_rows(*args[:4]) if packet in _SCATTERS or packet in _ADDED else 0


def _sorted_rows(into: Tensor, dim: int, index: Tensor, rows: Tensor) -> int:
    """Bytes of adding rows to the rows that an index names, on a CPU: torch sorts the index, as pairs of int64 and with
    a copy, and notes where each row begins and ends. It does so for rows of 16 elements or more, if all elements of a
    row have the same index (``aten/src/ATen/native/cpu/ScatterGatherKernel.cpp``)."""
    if dim % max(1, into.dim()) or not into.is_floating_point() or not isinstance(rows, Tensor) or not index.dim():
        return 0
    whole_rows = not any(step for step, size in zip(index.stride()[1:], index.shape[1:], strict=True) if size > 1)
    count = index.shape[0]
    if not whole_rows or into.dim() < 2 or rows.numel() < _FEW_COLUMNS * count:
        return 0
    return 8 * (4 * count + 2 * into.shape[0])
