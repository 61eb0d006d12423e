"""How a strided tensor's elements lie in memory, and the flat order in which a codec stores them.

A dense tensor, channels-last and transposed ones included, is stored in memory order, with no copy. An expanded one
(stride 0) is stored once. One with gaps (a slice) is stored as its contiguous copy. Each comes back with its shape and
strides. Only two come back contiguous: a tensor whose elements share memory in another way (``unfold``), and one whose
gaps take many times the memory of its elements (``x[:, 0]``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# With gaps, a tensor comes back in as many elements of memory, or in as many times its own; without them beyond both.
_ROOM, _WIDEST = 1 << 16, 4
_STRIDED = torch.strided


class Layout(NamedTuple):
    """Shape and strides of a tensor, in elements."""

    shape: tuple[int, ...]
    """Sizes, outermost first."""
    strides: tuple[int, ...]
    """Steps in memory, one for each dimension; empty for a tensor that has none (sparse, jagged)."""

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        return cls(tuple(tensor.shape), tensor.stride() if tensor.layout is _STRIDED else ())

    @property
    def distinct_shape(self) -> tuple[int, ...]:
        """The shape with expanded dimensions reduced to 1: one entry per element that is stored."""
        return distinct_shape(self)

    @property
    def stored_numel(self) -> int:
        """Elements that are stored: every one once, expanded ones not repeated."""
        return stored_numel(self)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie end to end in the order of the indices. Most tensors do, so this is asked first."""
        return is_contiguous(self)

    @property
    def dense(self) -> bool:
        """Whether the distinct elements fill one stretch of memory without gaps or overlaps."""
        return is_dense(self)

    @property
    def spaced(self) -> bool:
        """Whether the tensor comes back with the gaps between its elements, in memory that has room for them."""
        return _is_spaced(self)

    def flatten(self, tensor: Tensor) -> Tensor:
        """Return the elements to store, flat: a view where the tensor is dense, a copy otherwise.

        Elements are read by index, never by address. Compiled code may allocate a tensor with other strides than the
        trace had. This layout comes from the trace, so the stored bytes have the order of the trace.
        """
        if tensor.is_contiguous():
            return tensor if tensor.dim() == 1 else tensor.reshape(-1)
        distinct = distinct_elements(self, tensor)
        order = memory_order(self)
        return distinct.contiguous().view(-1) if order is None else distinct.permute(order).reshape(-1)

    def restore(self, flat: Tensor) -> Tensor:
        """Return a tensor of this shape and these strides from the stored elements. This inverts ``flatten``.

        In compiled code the strides of dimensions of size 1 may differ.
        """
        if self.strides == (1,):
            return flat
        order = memory_order(self)
        if order is not None and not torch.compiler.is_compiling():
            return flat.as_strided(self.shape, self.strides)
        shape = distinct_shape(self)
        if order is not None:
            inverse = [0] * len(order)
            for place, dim in enumerate(order):
                inverse[dim] = place
            return flat.view([shape[dim] for dim in order]).permute(inverse).expand(self.shape)
        distinct = flat.view(shape)
        if _is_spaced(self):
            distinct = flat.new_empty_strided(distinct_shape(self), self.strides).copy_(distinct)
        return distinct.expand(self.shape)


# What the properties say, for code that torch.compile traces: torch 2.10 traces functions of a NamedTuple that holds
# symbols, and none of its properties.


def distinct_shape(layout: Layout) -> tuple[int, ...]:
    """``Layout.distinct_shape``."""
    return tuple(1 if step == 0 and size > 0 else size for size, step in zip(layout.shape, layout.strides, strict=True))


def stored_numel(layout: Layout) -> int:
    """``Layout.stored_numel``."""
    return math.prod(distinct_shape(layout) if 0 in layout.strides else layout.shape)


def is_contiguous(layout: Layout) -> bool:
    """``Layout.contiguous``."""
    end = 1
    for size, step in zip(layout.shape[::-1], layout.strides[::-1], strict=True):
        if size != 1:
            if step != end or size == 0:
                return False
            end *= size
    return True


def is_dense(layout: Layout) -> bool:
    """``Layout.dense``."""
    return is_contiguous(layout) or _gap_or_overlap(distinct_shape(layout), layout.strides)[0] == 0


def memory_order(layout: Layout) -> list[int] | None:
    """Return the dimensions of a dense layout in memory order, the outermost first; ``None`` for a layout with gaps or
    overlaps."""
    if is_contiguous(layout):
        return list(range(len(layout.shape)))
    gap, order = _gap_or_overlap(distinct_shape(layout), layout.strides)
    return order if gap == 0 else None


def distinct_elements(layout: Layout, tensor: Tensor) -> Tensor:
    """Return a view of the tensor that has each stored element once, of shape ``layout.distinct_shape``."""
    for dim, (size, step) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        if step == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _is_spaced(layout: Layout) -> bool:
    shape, strides = distinct_shape(layout), layout.strides
    if _gap_or_overlap(shape, strides)[0] <= 0:
        return False
    span = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    return bool(span <= max(_ROOM, _WIDEST * stored_numel(layout)))


def _gap_or_overlap(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, list[int]]:
    """Return 0 if the dimensions lie end to end, 1 for gaps, -1 if elements may overlap; and the dimensions, from the
    largest to the smallest stride. Dimensions of size 1 come first."""
    if math.prod(shape) == 0:
        return 0, list(range(len(shape)))
    left = [dim for dim, size in enumerate(shape) if size > 1]
    order: list[int] = []  # from the smallest stride on
    gap = 0
    end = 1
    while left:
        at = 0  # of the smallest stride: torch.compile does not trace a sort of symbolic sizes
        for i in range(1, len(left)):
            if strides[left[i]] < strides[left[at]]:
                at = i
        dim = left.pop(at)
        step, size = strides[dim], shape[dim]
        if step < end:
            return -1, []
        if step > end:
            gap = 1
        end = step * (size - 1) + end if gap else step * size
        order.append(dim)
    return gap, [dim for dim, size in enumerate(shape) if size <= 1] + order[::-1]
