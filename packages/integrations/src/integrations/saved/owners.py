"""Tensors that somebody else keeps alive anyway: compressing them would add memory, not save it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from integrations.saved.calls import Call, StorageSet, storage_of, storages_of


class Owners:
    """The storages of a model's parameters and buffers and of a forward's inputs.

    Storages are compared, not tensors: ``nn.Linear`` saves ``weight.t()``, attention saves slices of a weight.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = _storages(model.parameters())
        self._buffers = _storages(model.buffers())
        self._inputs = StorageSet()

    def add_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Declares what the caller gave to the model, and so keeps alive. What the caller computed under autograd is
        no such thing: it is one more activation, which callers seldom hold on to."""
        for tensor in tensors:
            if tensor.grad_fn is None:
                for storage in storages_of(tensor):
                    self._inputs.add(storage)

    def holder(self, storage: torch.UntypedStorage, foreign: StorageSet) -> str:
        """Who holds a storage, in words; empty if only autograd does."""
        if storage in self._parameters:
            return "parameter"
        if storage in self._buffers:
            return "buffer"
        if storage in self._inputs:
            return "input of the model"
        return "made before the forward" if storage in foreign else ""

    def owner(self, tensor: Tensor, storage: torch.UntypedStorage, foreign: StorageSet, call: Call | None) -> str:
        """Who keeps the tensor alive, in words; empty if only autograd does."""
        holder = self.holder(storage, foreign)
        if holder:
            return holder
        if _is_parameter(tensor):
            return "parameter"
        return "parameter, cast by autocast" if self._is_cast_of_parameter(tensor, call) else ""

    def _is_cast_of_parameter(self, tensor: Tensor, call: Call | None) -> bool:
        """Autocast saves a lower-precision copy of a weight: of a trained one, it keeps the copy itself."""
        root = tensor._base if tensor._base is not None else tensor
        cast = root.grad_fn
        weights = [argument for argument in call.arguments if _in(argument, self._parameters)] if call else []
        if cast is not None:
            if cast.name() != "ToCopyBackward0":
                return False
            source = cast.next_functions[0][0]
            leaf = getattr(source, "variable", None)
            if leaf is not None:
                return _in(leaf, self._parameters)
            return any(source is weight.grad_fn for weight in weights)  # a view of a weight, such as weight.t()
        return any(
            not weight.requires_grad  # a trained one's copy has a history
            and weight.dtype != tensor.dtype
            and sorted(weight.shape) == sorted(tensor.shape)
            for weight in weights
        )


def _is_parameter(tensor: Tensor) -> bool:
    """Whether the tensor is a parameter, or a view of one, be it the model's or not: lazy modules make theirs in the
    first forward, sharded ones put theirs in place for a moment."""
    return isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)


def _storages(tensors: Iterable[Tensor]) -> StorageSet:
    found = StorageSet()
    for tensor in tensors:
        for storage in storages_of(tensor):
            found.add(storage)
    return found


def _in(tensor: Tensor, storages: StorageSet) -> bool:
    storage = storage_of(tensor)
    return storage is not None and storage in storages
