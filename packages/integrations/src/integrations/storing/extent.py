"""``Extent``: what a tensor takes in memory."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from actcore import Layout


class Extent(NamedTuple):
    """What a tensor takes in memory."""

    layout: Layout
    numel: int
    """Elements that are stored."""
    dense: bool
    """Whether they fill one stretch of memory."""
    stored: Layout
    """As which they are stored: end to end where they are dense."""

    @classmethod
    def of(cls, tensor: Tensor) -> Extent:
        layout = Layout.of(tensor)
        numel, dense = layout.stored_numel, layout.dense
        return cls(layout, numel, dense, Layout((numel,), (1,)) if dense else layout)
