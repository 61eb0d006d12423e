"""``unwatched_blocks``: have a module learn nothing from forwards that are no steps of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from torch import nn


def unwatched_blocks(module: nn.Module) -> Iterator[AbstractContextManager[Callable[[], None]]]:
    """Yield a block for each attribute of a module that learns from forwards and backwards, as a Q-layer's precision.

    Forwards in the block teach it nothing, and it is as before afterwards. Entering the block returns a function that
    has the next forward draw the noise of the block's first one.
    """
    for value in list(vars(module).values()):
        # Asked of the class: a user's object may answer to any name.
        if getattr(type(value), "unwatched", None) is not None:
            yield value.unwatched()
