"""Which call saves a tensor, and what the tensor is to it.

A pack hook is told neither. While a forward runs, a ``TorchFunctionMode`` sees each call with its arguments before
autograd saves anything for it. Composites written in Python (``F.dropout``, ``F.cross_entropy``) are one call: the mode
is off inside it. ``F.multi_head_attention_forward`` is opened, since it is whole layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from integrations.saved import attention
from integrations.saved.arguments import Arguments, variant
from integrations.saved.rules import operator_name


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, Mapping):
        yield from tensors_in(list(values.values()))


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """The tensor's storage; ``None`` for one that has none to ask for: sparse, nested, a wrapper subclass."""
    if tensor.layout is not torch.strided or tensor.is_nested or is_traceable_wrapper_subclass(tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # ValueError: a lazy module's parameter, not made yet
        return None


def storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages that hold a tensor's elements: its own, or those of the tensors that it is made of."""
    storage = storage_of(tensor)
    if storage is not None:
        return [storage]
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return [storage for part in _components(tensor) for storage in storages_of(part)]


def _components(tensor: Any) -> list[Tensor]:
    """What a tensor without a storage is made of; nothing where that cannot be told."""
    if is_traceable_wrapper_subclass(tensor):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [part for part in parts if isinstance(part, Tensor)]  # DTensor names its mesh there, too
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.values()] if tensor.is_nested else []


class StorageSet:
    """Storages by identity. A weak reference to each keeps its address from being given to another."""

    def __init__(self) -> None:
        self._references: dict[int, StorageWeakRef] = {}
        self._room = 1024

    def add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._references:
            if len(self._references) >= self._room:  # storages that are gone can be forgotten: nobody can ask for them
                alive = {key: reference for key, reference in self._references.items() if not reference.expired()}
                self._references, self._room = alive, max(1024, 2 * len(alive))
            self._references[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._references


class Call:
    """One call of a torch function, while it runs.

    Attributes:
        name: of the function, as ``operator_name`` has it.
        operator: the same, with an argument after it where that argument makes the function's rule not hold.
        given: its arguments.
        arguments: the tensors among them.
        recomputes: whether backward computes the call again, from the tensors that it saves.
    """

    __slots__ = ("arguments", "given", "name", "operator", "recomputes")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.name = operator_name(function)
        self.given = Arguments(args, kwargs)
        self.operator = variant(self.name, self.given)
        self.arguments = [*tensors_in(args), *tensors_in(kwargs)]
        self.recomputes = False

    def role(self, tensor: Tensor) -> str:
        """What the tensor is to this call: ``"input"``, ``"other"``, ``"result"`` or ``"internal"``; ``"recomputed"``
        for query, key and value of attention that backward computes again."""
        if self.recomputes and tensor is not self.given.get(3, "attn_mask"):
            return "recomputed"
        storage = storage_of(tensor)
        for position, argument in enumerate(self.arguments):
            if argument is tensor or (storage is not None and _same_storage(argument, storage)):
                return "input" if position == 0 else "other"
        return "internal" if tensor.grad_fn is None else "result"


# What lets somebody write to a tensor's memory without its version moving: ``.data`` and raw pointers.
_EXPOSING = frozenset(
    {
        Tensor.data.__get__,  # type: ignore[attr-defined]
        Tensor.data_ptr,
        Tensor.numpy,
        Tensor.__array__,
        Tensor.__dlpack__,
        Tensor.storage,
        Tensor.untyped_storage,
    }
)


class CallTracker(TorchFunctionMode):
    """Sees every torch function that a forward calls.

    Attributes:
        call: the call that is running, or ``None``.
        foreign: storages that were there before the forward: somebody else keeps them alive.
        born: storages that calls of this forward made.
        exposed: storages that may be written to without their version moving.
        pack: the pack hook for which attention is replaced by one that saves less, while it is the innermost. Not so
            inside a checkpoint, which runs the forward again without this mode and counts what is saved.
        watcher: is given the tensors of each call that is over, arguments first; ``None`` where nobody asks.
        look: runs before each call; ``None`` where nobody asks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pack: Callable[[Tensor], Any] | None = None
        self.call: Call | None = None
        self.foreign = StorageSet()
        self.born = StorageSet()
        self.exposed = StorageSet()
        self.watcher: Callable[[list[Tensor]], None] | None = None
        self.look: Callable[[], None] | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():  # nothing for torch.compile to trace: a compiled region stays one
            return func(*args, **(kwargs or {}))
        if self.look is not None:
            self.look()
        outer, self.call = self.call, Call(func, args, kwargs or {})
        try:
            for argument in self.call.arguments:
                self._meet(argument)
                if func in _EXPOSING and (storage := storage_of(argument)) is not None:
                    self.exposed.add(storage)
            result = self._run(self.call, func, types, args, kwargs or {})
            outputs = list(tensors_in(result))
            if self.watcher is not None:
                self.watcher([*self.call.arguments, *outputs])
        finally:
            self.call = outer
        for output in outputs:
            for storage in storages_of(output):
                if storage not in self.foreign:
                    self.born.add(storage)
        return result

    def _run(
        self, call: Call, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if call.name == attention.OPERATOR and self._packs_now():
            call.recomputes = True
            output = attention.recomputed(func, call.given)
            if output is not None:
                return output
            call.recomputes = False
        elif func is F.multi_head_attention_forward and all(kind in (Tensor, nn.Parameter) for kind in types):
            with self:
                return _opened(F.multi_head_attention_forward)(*args, **kwargs)
        return func(*args, **kwargs)

    def _packs_now(self) -> bool:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return self.pack is not None and hooks is not None and hooks[0] is self.pack

    def _meet(self, argument: Tensor) -> None:
        """Marks an argument that no call of this forward made. One with a history is left: some operator that the mode
        does not see, such as a custom autograd Function, may have made it."""
        if argument.grad_fn is None:
            for storage in storages_of(argument):
                if storage not in self.born:
                    self.foreign.add(storage)


def _opened(composite: Any) -> FunctionType:
    """The same function, whose own calls a mode sees: it does not ask first whether to hand itself to the mode."""
    names = {**composite.__globals__, "has_torch_function": lambda tensors: False}
    opened = FunctionType(composite.__code__, names, composite.__name__, composite.__defaults__, composite.__closure__)
    opened.__kwdefaults__ = composite.__kwdefaults__
    return opened


def _same_storage(tensor: Tensor, storage: torch.UntypedStorage) -> bool:
    other = storage_of(tensor)
    return other is not None and other._cdata == storage._cdata
