"""The tensors that a checkpoint itself holds, and what holds their stored forms in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from actcore import Kept
from actcore.replay import unpack
from integrations._utils.storages import StorageSet
from integrations.tracing.history import find_node
from integrations.tracing.rebuild import Built, Place, build
from integrations.tracing.storage.forms import Packed
from integrations.tracing.storage.regions import Exact
from integrations.tracing.tensors import find_storages


class Packer(Protocol):
    """Stores what a checkpoint holds."""

    def pack_held(self, tensor: Tensor, obstacle: str = "") -> Packed:
        """Stores a tensor as the level says. If there is an obstacle, keeps it exactly, with that as the reason."""


class Slot(Place):
    """The place where a checkpoint held a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor  # None once it is stored
        self._packed: Packed | None = None
        # The result of saving it: up to torch 2.11 its node alone keeps nothing alive.
        self._saver: Tensor | None = None

    def store(self, packed: Packed) -> None:
        """Frees the tensor. Its place in the graph is kept, as that of a positional input is."""
        assert self.tensor is not None
        if self.tensor.requires_grad:
            with torch.enable_grad(), saved_tensors_hooks(lambda tensor: packed, unpack):
                self._saver = _Save.apply(self.tensor)
        else:
            self._packed = packed
        self.tensor = None

    def build(self, built: Built) -> Any:
        if self.tensor is not None:
            return self.tensor
        if self._packed is not None:
            return unpack(self._packed)
        assert self._saver is not None
        return self._saver.grad_fn.saved_tensors[0]  # type: ignore[union-attr]


class _Save(torch.autograd.Function):
    """Saves a tensor. Its backward never runs."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return tensor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nobody has the result of this function")


@dataclass
class Found:
    """The tensors that a checkpoint holds and that this forward has made.

    Attributes:
        born: storages that the forward has made.
        slots: the places of the tensors that can be stored.
        left: the other tensors, with what holds them.
    """

    born: StorageSet
    slots: list[Slot] = field(default_factory=list)
    left: list[tuple[Tensor, object]] = field(default_factory=list)

    def found(self, tensor: Tensor) -> Place | None:
        """What replaces the tensor; ``None`` for a tensor that the forward did not make."""
        if not self._is_ours(tensor):
            return None
        self.slots.append(Slot(tensor))
        return self.slots[-1]

    def out_of_reach(self, tensor: Tensor, holder: object) -> None:
        """Notes a tensor in an object that cannot be rebuilt."""
        if self._is_ours(tensor):
            self.left.append((tensor, holder))

    def _is_ours(self, tensor: Tensor) -> bool:
        """Whether the forward has made the tensor. As for positional inputs, a tensor with a history is an activation,
        and a leaf is one if the forward has made it. A leaf that requires a gradient belongs to whoever asks for that
        gradient, and a view that autograd cannot follow is left alone, too."""
        if find_node(tensor) is not None:
            return True
        return not tensor.requires_grad and any(storage in self.born for storage in find_storages(tensor))

    def __bool__(self) -> bool:
        return bool(self.slots or self.left)

    def store_all(self, packer: Packer, obstacle: str = "") -> list[Packed]:
        """Stores what can be stored. Returns what is kept: the rest, and, if there is an obstacle, what a gradient goes
        through."""
        exact: list[Packed] = []
        for slot in self.slots:
            assert slot.tensor is not None
            packed = packer.pack_held(slot.tensor, obstacle if slot.tensor.requires_grad else "")
            if isinstance(packed, (Exact, Kept)):
                exact.append(packed)
            else:
                slot.store(packed)
        for tensor, holder in self.left:
            why = f"a checkpoint holds it in a {type(holder).__name__}, which only its own code can make: kept exactly"
            exact.append(packer.pack_held(tensor, why))
        return exact

    def keep_all(self, packer: Packer, why: str) -> list[Packed]:
        """Keeps everything, for a reason."""
        tensors = [slot.tensor for slot in self.slots if slot.tensor is not None]
        return [packer.pack_held(tensor, why) for tensor in [*tensors, *(tensor for tensor, _ in self.left)]]


class Again:
    """In the place of a function that held tensors: rebuilds the function for each call."""

    def __init__(self, function: Any, exact: list[Packed]) -> None:
        self._function = function
        self._exact = exact  # what this function still keeps: other tensors in its storage need no copy

    def __call__(self, *args: Any) -> Any:
        built: Built = {}
        function = build(self._function, built)
        return function(*(build(value, built) for value in args))
