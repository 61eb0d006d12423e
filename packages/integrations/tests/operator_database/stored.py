"""What is restored in the place of each tensor that autograd saved, and the gradient on the way there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils._pytree import tree_leaves

Found = TypeVar("Found")


class Differs(Exception):
    """Two graphs are not of the same operators."""


class Saves:
    """Saved tensors of a plain forward, of which backward reads what lies a part of the way to what is restored.

    Attributes:
        part: of the way; 0 at the tensors themselves.
        restored: in the place of a tensor, by its number.
    """

    def __init__(self) -> None:
        self.part, self.restored = 0.0, dict[int, Tensor]()
        self._saved: list[Tensor] = []
        self._read: list[int] = []

    def forward(self, call: Callable[[], Found]) -> Found:
        """Runs a forward, and saves for it."""
        with saved_tensors_hooks(self._pack, self._unpack):
            return call()

    def take(self, plain: Sequence[Tensor], compressed: Sequence[Tensor]) -> None:
        """Looks up what is restored, in the graph of a compressed forward of the same operators.

        Raises:
            Differs: it has others, as where attention is replaced.
        """
        for one, other in zip(_nodes(plain), _nodes(compressed), strict=False):
            if one.name() != other.name():
                raise Differs(f"{other.name()} in the place of {one.name()}")
            for name in _names(one):
                self._read.clear()
                saved = _tensors(one, name)
                if len(self._read) == len(saved):  # numbers that were given as such are saved without a hook
                    self._restore(list(self._read), _tensors(other, name))

    def _restore(self, numbers: Sequence[int], found: Sequence[Tensor]) -> None:
        for number, restored in zip(numbers, found, strict=True):
            saved = self._saved[number]
            if saved.layout is torch.strided and saved.shape == restored.shape and not torch.equal(saved, restored):
                self.restored[number] = restored.detach().clone()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Each tensor that is restored as another, and what is restored."""
        return [(self._saved[number], restored) for number, restored in self.restored.items()]

    def _pack(self, saved: Tensor) -> int:
        self._saved.append(saved.detach())
        return len(self._saved) - 1

    def _unpack(self, number: int) -> Tensor:
        self._read.append(number)
        saved = self._saved[number]
        if number not in self.restored or not self.part:
            return saved
        # At the end exactly what is restored: a sum would round it.
        return self.restored[number] if self.part == 1 else saved + self.part * (self.restored[number] - saved)


def _nodes(results: Sequence[Tensor]) -> list[Node]:
    """All nodes of a graph, in an order that follows from the graph."""
    left = [one.grad_fn for one in results if one.grad_fn is not None]
    found: dict[Node, None] = {}
    while left:
        node = left.pop()
        if node not in found:
            found[node] = None
            left.extend(above for above, _ in node.next_functions if above is not None)
    return list(found)


def _names(node: Node) -> list[str]:
    return [name for name in sorted(dir(node)) if name.startswith("_saved_")] or ["saved_tensors"]


def _tensors(node: Node, name: str) -> list[Tensor]:
    return [one for one in tree_leaves(getattr(node, name, None)) if isinstance(one, Tensor)]
