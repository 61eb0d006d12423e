"""``count_cpu_scratch``: the bytes that CPU kernels allocate in addition to their arguments and results.

Attention has a block of scores for each thread, and its backward copies a gradient that lies in another layout. A layer
norm's backward has partial sums for each thread. A matrix exponential has several powers of its argument. Adding rows
by an index sorts the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload
from integrations.capture.dispatch.memory import count_bytes

_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
_LAYER_NORM_BACKWARD = "aten::native_layer_norm_backward"
_MATRIX_EXPONENTIAL = "aten::linalg_matrix_exp"
_ADDS_ROWS = {f"aten::{name}" for one in ("scatter_add", "scatter_reduce", "index_add") for name in (one, f"{one}_")}
_FEW_COLUMNS = 16  # rows of fewer are not sorted
_HALF = (torch.float16, torch.bfloat16)


def count_cpu_scratch(function: OpOverload, args: tuple[Any, ...]) -> int:
    """Return the bytes that a call allocates and frees while it runs, as far as they are modelled; otherwise 0."""
    name = function._schema.name
    if name == _ATTENTION:
        return _count_attention(*args[:2])
    if name == f"{_ATTENTION}_backward":
        return _count_attention_backward(*args[:3])
    if name == _LAYER_NORM_BACKWARD:
        return _count_layer_norm_backward(args[1], args[2], args[7])
    if name == _MATRIX_EXPONENTIAL:
        return _count_matrix_exponential(args[0])
    return _count_sorted_rows(*args[:4]) if name in _ADDS_ROWS else 0


def _count_attention(query: Tensor, key: Tensor) -> int:
    """Count each thread's block of scores, the largest score and the sum of each row, and a block of the result."""
    rows, columns = _get_block(query, key)
    elements = rows * (columns + 2 + query.shape[-1])
    return torch.get_num_threads() * (_wide(query) * elements + _narrow(query) * rows * columns)


def _count_attention_backward(gradient: Tensor, query: Tensor, key: Tensor) -> int:
    """Count each thread's blocks of scores and their gradients, a sum for each row, and the copy of a gradient that is
    not contiguous as (batch, tokens, heads, width)."""
    rows, columns = _get_block(query, key)
    threads, heads = torch.get_num_threads(), query.shape[0] * query.shape[1]
    blocks = threads * 2 * rows * columns * (_wide(query) + _narrow(query))
    sums = min(threads, heads) * rows * _wide(query)
    return blocks + sums + (0 if gradient.transpose(1, 2).is_contiguous() else count_bytes(gradient))


def _get_block(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Return the queries and keys of a block of scores (``aten/src/ATen/native/cpu/FlashAttentionKernel.cpp``)."""
    queries, keys = query.shape[-2], key.shape[-2]
    rows = 256 if queries >= 768 else 64 if queries >= 192 else 32
    return min(rows, queries), min(512, keys)


def _wide(tensor: Tensor) -> int:
    """Return the bytes of an element of sums."""
    return 4 if tensor.dtype in _HALF else tensor.element_size()


def _narrow(tensor: Tensor) -> int:
    """Return the bytes of an element of a block in half precision, which other dtypes do not have."""
    return tensor.element_size() if tensor.dtype in _HALF else 0


def _count_layer_norm_backward(x: Tensor, shape: Sequence[int], mask: Sequence[bool]) -> int:
    """Count partial sums of the gradients of scale and bias, if one is asked for, each in x's dtype
    (``aten/src/ATen/native/cpu/layer_norm_kernel.cpp``)."""
    if not any(mask[1:]):
        return 0
    return 2 * torch.get_num_threads() * torch.Size(shape).numel() * x.element_size()


def _count_matrix_exponential(matrices: Tensor) -> int:
    """Count the powers of each matrix, their sums, and, for several matrices, three numbers for each
    (``aten/src/ATen/native/LinearAlgebra.cpp``). One matrix of a small norm takes less: its polynomial is shorter."""
    size = matrices.shape[-1]
    count = matrices.numel() // max(1, size**2)
    if size < 2 or not count:
        return 0
    copies, noted = (12, 0) if count == 1 else (10, 3 * count * matrices.dtype.to_real().itemsize)
    return copies * count_bytes(matrices) + noted


def _count_sorted_rows(into: Tensor, dim: int, index: Tensor, rows: Tensor) -> int:
    """Count the bytes of adding rows to the rows that an index names: torch sorts the index, as pairs of int64 and with
    a copy, and notes where each row begins and ends. It does so for rows of 16 elements or more, if all elements of a
    row have the same index (``aten/src/ATen/native/cpu/ScatterGatherKernel.cpp``)."""
    if dim % max(1, into.dim()) or not into.is_floating_point() or not isinstance(rows, Tensor) or not index.dim():
        return 0
    whole_rows = not any(step for step, size in zip(index.stride()[1:], index.shape[1:], strict=True) if size > 1)
    count = index.shape[0]
    if not whole_rows or into.dim() < 2 or rows.numel() < _FEW_COLUMNS * count:
        return 0
    return 8 * (4 * count + 2 * into.shape[0])
