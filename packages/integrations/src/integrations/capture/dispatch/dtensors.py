"""Operators on DTensors in a dispatch mode, which are opened into operators on the parts that this rank has.

A mode is called before a DTensor is. If it returns ``NotImplemented``, the DTensor runs the operator on this rank's
parts, with collectives around it, and the mode is called for each of these.

``Unseen``: operators that are not part of a forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from integrations._utils.torch_internals import OpOverload, fake_mode, is_in_collective, is_propagating_shardings
from integrations.capture.dispatch.memory import iter_parts, iter_tensors
from integrations.capture.dispatch.operators import WRITERS, Traits
from integrations.tracing.tensors import is_collective_result, is_dtensor_class


def is_opened(traits: Traits, types: Iterable[type]) -> bool:
    """Return whether a mode is to return ``NotImplemented`` for an operator, since an argument is a DTensor, or the
    result of a collective that is not waited for yet.

    Random operators are not opened: torch sets the generator around them, which no repetition would do.

    Args:
        traits: the operator's.
        types: the classes of its arguments, as a mode is given them.
    """
    return not traits.random and any(is_dtensor_class(one) or is_collective_result(one) for one in types)


def find_parts(given: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the DTensors among an operator's arguments, each with the part that this rank has."""
    for tensor in iter_tensors(given):
        if is_dtensor_class(type(tensor)):
            for part in iter_parts(tensor):
                yield tensor, part


class Unseen:
    """Tell a mode which operators are not part of a forward: they depend on what torch has met before, or on the
    backend of a collective.

    Attributes:
        opened: whether an operator on DTensors was seen.
        communicates: whether the forward has collectives that write into tensors that they are given.
    """

    def __init__(self, communicates: bool = False) -> None:
        self.opened, self.communicates = False, communicates

    def skips(self, func: OpOverload) -> bool:
        """Return whether torch runs an operator only to find the shapes of a DTensor's operator, on fake tensors, or to
        complete a collective, as gloo does."""
        if self.communicates and func.namespace != WRITERS and is_in_collective():
            return True
        return self.opened and fake_mode() is not None and is_propagating_shardings()
