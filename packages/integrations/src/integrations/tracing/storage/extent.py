"""``Extent``: the part of memory that a tensor covers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from actcore import Layout


class Extent(NamedTuple):
    """The part of memory that a tensor covers."""

    layout: Layout
    numel: int
    """Elements that are stored."""
    dense: bool
    """Whether they fill one stretch of memory."""
    stored: Layout
    """The layout in which they are stored: end to end if they are dense."""

    @classmethod
    def of(cls, tensor: Tensor) -> Extent:
        layout = Layout.of(tensor)
        numel, dense = layout.stored_numel, layout.dense
        return cls(layout, numel, dense, Layout((numel,), (1,)) if dense else layout)
