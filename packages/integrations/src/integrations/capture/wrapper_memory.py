"""``Apart``: count the memory of tensors that keep their elements in other tensors, such as DTensors.

Plans keep these tensors, and count their bytes as long as they are alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from functools import partial
from typing import Any

from torch import Tensor

from integrations.capture.dispatch.memory import (
    Memory,
    allocated_for,
    allocated_for_elements,
    get_key,
    is_plain,
    is_wrapper,
    iter_parts,
    iter_tensors,
)


class Apart:
    """Count the live storages of such tensors.

    Args:
        memory: the storages that hold values, which are counted already.
        given: the keys of other storages that exist before the step.

    Attributes:
        live: the bytes of the live storages.
    """

    def __init__(self, memory: Memory, given: Collection[int]) -> None:
        self._memory, self._given = memory, given
        self._watches: dict[int, weakref.ref[Any]] = {}
        self.live = 0

    def note(self, results: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the results of an operator."""
        made = [tensor for tensor in iter_tensors(results) if not is_plain(tensor) and is_wrapper(tensor)]
        if not made:
            return
        given = (*iter_tensors(args), *iter_tensors(kwargs.values()))
        known = {get_key(part) for tensor in given for part in iter_parts(tensor)}
        for part in (part for tensor in made for part in iter_parts(tensor)):
            key = get_key(part)
            if key in known or key in self._given or key in self._watches or self._memory.value_at(key) is not None:
                continue
            nbytes = allocated_for(part)
            self.live += nbytes
            self._watches[key] = weakref.ref(part.untyped_storage(), partial(self._died, key, nbytes))

    def finish(self) -> None:
        """Stop counting."""
        self._watches.clear()

    def _died(self, key: int, nbytes: int, _: object) -> None:
        self.live -= nbytes
        self._watches.pop(key, None)


def bytes_of_gradient(gradient: Tensor) -> int:
    """Return the bytes of a gradient's elements on this rank, including those that a sparse gradient omits."""
    if is_plain(gradient) or not is_wrapper(gradient):
        return allocated_for_elements(gradient)
    return sum(allocated_for_elements(part) for part in iter_parts(gradient))
