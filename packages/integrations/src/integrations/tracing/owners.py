"""Finds tensors that something else keeps alive anyway: compressing them would add memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from actcore.replay import hold
from integrations._utils.running_module import all_modules
from integrations._utils.storages import StorageSet
from integrations.tracing.call import Call
from integrations.tracing.tensors import find_node, find_storages, get_memory, has_history

PARAMETER, BUFFER, INPUT = "parameter", "buffer", "input of the model"
BEFORE = "made before the forward"
CAST = "parameter, cast by autocast"


class Owners:
    """The storages of a model's parameters and buffers and of a forward's inputs.

    Storages are compared, not tensors: ``nn.Linear`` saves ``weight.t()``, attention saves slices of a weight. They are
    held until ``release``, so that no address is reused.

    Attributes:
        holders: by a storage's address: who holds it, in words.
    """

    def __init__(self, model: nn.Module) -> None:
        self.holders: dict[int, str] = {}  # by address
        self._held: list[torch.UntypedStorage] = []
        self._parameters: list[nn.Parameter] = []
        self._dtypes: set[torch.dtype] = set()  # the parameters' dtypes
        # The parameters' shapes, computed when first needed.
        self._shapes: dict[torch.Size, set[torch.dtype]] | None = None
        self._add_model(model)

    def _add_model(self, model: nn.Module) -> None:
        """Adds what is the model's."""
        for module in all_modules(model):
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._add(parameter, PARAMETER)
                    self._parameters.append(parameter)
                    self._dtypes.add(parameter.dtype)
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._add(buffer, BUFFER)

    def _add(self, tensor: Tensor, holder: str) -> None:
        if hold(self.holders, self._held, tensor, holder, holder == PARAMETER):
            return
        for storage in find_storages(tensor):
            address = storage._cdata
            if address not in self.holders or holder == PARAMETER:
                self.holders[address] = holder
                self._held.append(storage)

    def add_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Declares what the caller gave to the model, and so keeps alive. What the caller computed under autograd is
        not declared: it is one more activation, which callers seldom hold on to."""
        for tensor in tensors:
            if not has_history(tensor):
                self._add(tensor, INPUT)

    def release(self) -> None:
        """Forgets everything: the forward is over."""
        self.holders.clear()
        self._held.clear()
        self._parameters.clear()

    def holder(self, storage: torch.UntypedStorage, foreign: StorageSet) -> str:
        """Who holds a storage, in words; empty if only autograd does."""
        found = self.holders.get(storage._cdata)
        if found is not None:
            return found
        return BEFORE if storage in foreign else ""

    def owner(self, tensor: Tensor, storage: torch.UntypedStorage, foreign: StorageSet, call: Call | None) -> str:
        """Who keeps the tensor alive, in words; empty if only autograd does."""
        holder = self.holder(storage, foreign)
        if holder:
            return holder
        root = tensor if tensor._base is None else tensor._base
        if _is_parameter(root):
            return PARAMETER
        return CAST if self._is_cast_of_parameter(tensor, root, call) else ""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of all parameters; ``None`` if they have several."""
        return next(iter(self._dtypes)) if len(self._dtypes) == 1 else None

    def _is_cast_of_parameter(self, tensor: Tensor, root: Tensor, call: Call | None) -> bool:
        """Whether a tensor is autocast's copy of a weight in a lower precision. Autocast saves it, and itself keeps the
        copies of trained weights."""
        if len(self._dtypes) == 1 and root.dtype in self._dtypes:  # nothing has another dtype than the weights
            return False
        if not has_history(root):
            return any(
                not weight.requires_grad  # the copy of a trained weight has a history
                and weight.dtype != tensor.dtype
                and sorted(weight.shape) == sorted(tensor.shape)
                for weight in self._weights(call)
            )
        cast = find_node(root) if self._is_like_cast(root, call) else None
        if cast is None or cast.name() != "ToCopyBackward0":
            return False
        source = cast.next_functions[0][0]
        leaf = getattr(source, "variable", None)
        if leaf is not None:
            return self._is_weight(leaf)
        return any(source is find_node(weight) for weight in self._weights(call))  # a view of a weight: weight.t()

    def _is_like_cast(self, root: Tensor, call: Call | None) -> bool:
        """Whether a parameter of the call, or a view of one, has the tensor's shape and another dtype. Few tensors pass
        this, and only their nodes are asked for."""
        if self._shapes is None:
            self._shapes = {}
            for parameter in self._parameters:
                if not is_lazy(parameter):
                    self._shapes.setdefault(parameter.shape, set()).add(parameter.dtype)
        dtype, shape = root.dtype, root.shape
        found = self._shapes.get(shape)
        if found is not None and found != {dtype}:
            return True
        for given in () if call is None else call.arguments:
            if given.dtype != dtype and given.shape == shape and self._is_weight(given):
                return True
        return False

    def _weights(self, call: Call | None) -> list[Tensor]:
        return [] if call is None else [argument for argument in call.arguments if self._is_weight(argument)]

    def _is_weight(self, tensor: Tensor) -> bool:
        storage = get_memory(tensor)
        return storage is not None and self.holders.get(storage._cdata) == PARAMETER


def _is_parameter(root: Tensor) -> bool:
    """Whether a tensor, or its base, is a parameter, of the model or not: lazy modules make theirs in the first
    forward, and sharded ones put theirs in place for a moment."""
    return type(root) is not Tensor and isinstance(root, nn.Parameter)
