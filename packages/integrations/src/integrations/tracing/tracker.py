"""Tells which call saves a tensor, and the tensor's role in it.

A pack hook is told neither. While a forward runs, a ``TorchFunctionMode`` sees each call with its arguments before
autograd saves anything for it. Composites written in Python (``F.dropout``, ``F.cross_entropy``) are one call: the mode
is off inside of them. ``F.multi_head_attention_forward`` is opened, since it is several layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from actcore.replay import Calls, NotedCalls, bind_calls
from integrations._utils.compiling import left_to_python_with_callees
from integrations._utils.storages import StorageSet
from integrations._utils.torch_internals import RESET_HOOKS, top_saved_tensors_default_hooks
from integrations.tracing import attention
from integrations.tracing.call import Call
from integrations.tracing.norm_inputs import NORMS, run_norm
from integrations.tracing.tensors import LEAVES, find_storages, get_storage, tensors_in, wraps_part

if TYPE_CHECKING:
    from integrations.tracing.checkpoints import Checkpoints


# These let code write to a tensor's memory without a change of its version: ``.data`` and raw pointers.
_EXPOSING = (
    Tensor.data.__get__,  # type: ignore[attr-defined]
    Tensor.data_ptr,
    Tensor.numpy,
    Tensor.__array__,
    Tensor.__dlpack__,
    Tensor.storage,
    Tensor.untyped_storage,
    *(getattr(where, name) for where in (torch, Tensor) for name in ("unsafe_chunk", "unsafe_split")),
)
_ATTENTION = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
# These tell something of a tensor's shape or kind. Some libraries call them a lot, and nothing is saved for them.
_DESCRIBING = (
    *(getattr(Tensor, name).__get__ for name in ("device", "dtype", "layout", "ndim", "requires_grad", "shape")),
    *(getattr(Tensor, name).__get__ for name in ("is_cuda", "is_leaf", "is_nested", "is_quantized", "is_sparse")),
    *(
        getattr(Tensor, name)
        for name in ("dim", "element_size", "get_device", "numel", "size", "storage_offset", "stride")
    ),
    *(getattr(Tensor, name) for name in ("is_complex", "is_contiguous", "is_floating_point")),
)
_SPECIAL: Mapping[Any, str] = MappingProxyType(
    {
        **dict.fromkeys(_DESCRIBING, "describing"),
        **dict.fromkeys(_EXPOSING, "exposing"),
        **dict.fromkeys(_ATTENTION, "attention"),
        **dict.fromkeys(NORMS, "norm"),
        F.multi_head_attention_forward: "layers",
        RESET_HOOKS: "resetting",
    }
)
"""Functions that need more than to be watched, or less."""


class CallTracker(Calls, TorchFunctionMode):
    """Sees every torch function that a forward calls. What it does for each call is in C (``csrc/bindings/calls.cpp``).

    Attributes:
        call: the call that is running, or ``None``.
        foreign: storages from before the forward: something else keeps them alive.
        born: storages that calls of this forward made.
        exposed: storages that may be written to without a change of their version.
        parts: storages of DTensors' parts and of collectives' results, which a plain tensor may share. Its version does
            not change with theirs.
        pack: the pack hook with which attention is replaced by one that saves less, while it is the innermost. It is
            not replaced inside a checkpoint, which runs the forward again without this mode and counts what is saved.
        recomputation: says how backward recomputes what an attention kernel makes, if something else needs it, too;
            ``None`` if nothing does.
        hidden: returns a block in which a plan's tape does not see operators on a tensor. A norm's input is stored in
            it when the norm has returned; ``None``: before the norm runs.
        watcher: called with the tensors of each call that is over, arguments first; ``None`` without an observer.
        checkpoints: their ``look`` is called before each call, where there may be something to see; ``None`` without
            checkpoints.
        over: called with each call that is over and the tensors that it returned; with checkpoints only for calls that
            may concern them. ``None`` without an observer.
        note: notes each call that is over and the tensors that it returned, but for functions that ``noted`` maps to
            ``None``. ``None`` where nobody notes them.
        follower: what is told of each call, before it runs and after it; ``None`` where nobody is.
            ``csrc/bindings/follow.h`` names the methods that it needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pack: Callable[[Tensor], Any] | None = None
        self.recomputation: attention.Recomputation | None = None
        self.hidden: Callable[[Tensor], AbstractContextManager[Any]] | None = None
        self.call: Call | None = None
        self.foreign = StorageSet()
        self.born = StorageSet()
        self.exposed = StorageSet()
        self.parts = StorageSet()
        self.watcher: Callable[[list[Tensor]], None] | None = None
        self.checkpoints: Checkpoints | None = None
        self.over: Callable[[Call, Sequence[Tensor]], None] | None = None
        self.note: NotedCalls | None = None
        self.noted: Mapping[Any, object] = {}
        self.follower: object = None

    @property
    def idle(self) -> bool:
        """Whether no call with tensors has been seen."""
        return not (len(self.born) or len(self.foreign))

    @left_to_python_with_callees  # or dynamo compiles each operator of eager code by itself
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():  # nothing for torch.compile to trace: a compiled region stays whole
            return func(*args, **(kwargs or {}))
        special = _SPECIAL.get(func)
        if special == "resetting":  # and nothing may be looked at while torch holds a lock
            return func(*args, **(kwargs or {}))
        given = kwargs if type(kwargs) is dict else dict(kwargs or {})
        if special == "describing" and self.watcher is None and (self.over is None or self.checkpoints is not None):
            return self.described(func, args, given)
        run = None if special is None else lambda call: self._run(special, call, func, types, args, given)
        result = self.tracked(func, args, given, run)
        # It may have changed an argument, as h[0] = y does. A getter changes none.
        if result is None and getattr(func, "__name__", "") != "__get__":
            self._expose(filter(wraps_part, tensors_in((args, given))))
        return result

    def _run(
        self,
        special: str,
        call: Call,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if special == "exposing":
            self._expose(call.arguments)
        elif special == "attention" and self._packs_now():
            call.recomputes = True
            output = attention.recomputed(func, call.given, self.recomputation)
            if output is not None:
                return output
            call.recomputes = False
        elif special == "norm" and self.hidden is not None:
            return run_norm(func, args, kwargs, self.hidden)
        elif special == "layers" and all(kind in (Tensor, nn.Parameter) for kind in types):
            with self:
                return opened(F.multi_head_attention_forward)(*args, **kwargs)
        return func(*args, **kwargs)

    def _packs_now(self) -> bool:
        hooks = top_saved_tensors_default_hooks(False)
        return self.pack is not None and hooks is not None and hooks[0] is self.pack

    def _meet(self, argument: Tensor) -> None:
        """Marks an argument that no call of this forward made."""
        if is_waiting(argument):
            return
        own = get_storage(argument)
        for storage in find_storages(argument) if own is None else (own,):
            if storage not in self.born:
                self.foreign.add(storage)
            if own is None and wraps_part(argument):
                self.parts.add(storage)

    def _bear(self, output: Tensor, call: Call) -> None:
        """Marks a result as made by this forward, unless it shares memory with something older, as
        ``parameter.detach()`` does."""
        for argument in call.arguments:
            if type(argument) is nn.Parameter:
                self._meet(argument)
        if is_waiting(output):
            return
        wraps = wraps_part(output)
        for storage in find_storages(output):
            if storage not in self.foreign:
                self.born.add(storage)
            if wraps:
                self.parts.add(storage)
        # A call such as h.float() returns it unchanged. Foreach operators change it, but not its version.
        if (
            wraps
            and any(argument is output for argument in call.arguments)
            and (call.in_place or output.is_inference() or output._version)
        ):
            self._expose([output])

    def _expose(self, arguments: Iterable[Tensor]) -> None:
        for argument in arguments:
            for storage in () if is_waiting(argument) else find_storages(argument):
                self.exposed.add(storage)


def is_waiting(tensor: Tensor) -> bool:
    """Whether a tensor has no memory before somebody asks for it, as the logits of a loss in chunks."""
    return bool(getattr(tensor, "waits", False))


def opened(composite: Any) -> FunctionType:
    """A copy of the function whose own calls a mode sees: it does not first ask whether to hand itself to the mode."""
    names = {**composite.__globals__, "has_torch_function": lambda tensors: False}
    opened = FunctionType(composite.__code__, names, composite.__name__, composite.__defaults__, composite.__closure__)
    opened.__kwdefaults__ = composite.__kwdefaults__
    return opened


bind_calls(
    {
        "Call": Call,
        "Tensor": Tensor,
        "Parameter": nn.Parameter,
        "StorageSet": StorageSet,
        "LEAVES": LEAVES,
        "tensors_in": tensors_in,
    }
)
