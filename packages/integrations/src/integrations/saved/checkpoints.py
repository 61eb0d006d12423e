"""The inputs of ``torch.utils.checkpoint``, from which backward computes a segment again.

Autograd saves the positional ones in a function of checkpoint's own, which no ``TorchFunctionMode`` sees; the Python
stack tells. The others, keyword arguments, tensors in containers and those that the segment reads from its closure, are
saved by nobody: they live because the function lives that computes the segment again. A checkpoint's hook leads to
that function, and when the segment is over, one that holds stored forms takes its place, in this call's object alone.
Torch's module stays as it is, for other threads and other models, and it does not matter by which name or wrapper
``checkpoint`` was called.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint as torch_checkpoint

from integrations.saved.arguments import Arguments
from integrations.saved.calls import Call, StorageSet, storages_of
from integrations.saved.forms import Packed
from integrations.saved.rebuild import Built, Place, Rebuilder, build
from integrations.saved.storage import Exact
from integrations.saved.watch import unpack

OPERATOR = "checkpoint"
_CHECKPOINT = torch_checkpoint.checkpoint.__module__
_BETWEEN = ("torch.autograd", "torch._dynamo", "integrations.saved", "actcore")  # a checkpoint's saving and our hook

_REENTRANT = (
    "a checkpoint with use_reentrant=True holds it besides its positional tensors: kept exactly; use_reentrant=False "
    "stores it"
)
_CIRCULAR = "a checkpoint holds it by a function or container that holds itself, and cannot be copied: kept exactly"


class Boundary(Call):
    """In the place of a call: a checkpoint, which holds a tensor."""

    def __init__(self) -> None:
        self.name = self.operator = OPERATOR
        self.given = Arguments((), {})
        self.arguments: list[Tensor] = []
        self.recomputes = False

    def role(self, tensor: Tensor) -> str:
        """``"input"`` if a gradient goes through the tensor, ``"other"`` if not, as with a mask."""
        return "input" if tensor.requires_grad else "other"


class Packer(Protocol):
    """Who stores what a checkpoint holds."""

    def pack_held(self, tensor: Tensor) -> Packed:
        """Stores a tensor as the level says."""

    def keep_held(self, tensor: Tensor, why: str) -> Packed:
        """Keeps a tensor exactly, for a reason."""


class Checkpoints:
    """The checkpoints that a forward enters, and what they hold besides what autograd saves for them.

    Args:
        packer: of the forward.
        own: its pack hook.
        born: storages that the forward has made.
    """

    def __init__(self, packer: Packer, own: Callable[[Tensor], Any], born: StorageSet) -> None:
        self._packer, self._own, self._born = packer, own, born
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting: list[weakref.ref[Any]] = []  # those whose segment may be running still
        self._reentrant: list[Packed] = []  # while these live, others that save their storages keep them, too

    def look(self) -> None:
        """Meets the checkpoint inside of which the caller is, and settles those that are over."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        inside = hooks is not None and hooks[0] is not self._own
        if inside:
            self._meet(_checkpoint_of(hooks[0]))
        # A selective checkpoint counts each operator that runs inside of it: ours must wait.
        if self._waiting and not (inside and torch._C._len_torch_dispatch_stack()):
            self.settle()

    def settle(self) -> None:
        """Puts stored forms into the checkpoints whose segment is over.

        Not before: the segment may change what it was given, and what backward computes again follows that.
        """
        waiting, self._waiting = self._waiting, []
        for reference in waiting:
            checkpoint = reference()
            if checkpoint is not None and not checkpoint.forward_completed:
                self._waiting.append(reference)
            elif checkpoint is not None:
                self._replace(checkpoint)

    def role(self, tensor: Tensor) -> str:
        """What a tensor that is being saved outside of any call is to a checkpoint: ``"input"`` if a gradient goes
        through it, ``"other"`` if not, as with a mask; empty if no checkpoint saves it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
            frame = frame.f_back
        if frame is None or frame.f_globals.get("__name__") != _CHECKPOINT:
            return ""
        self.settle()
        self._meet_below(frame, tensor)
        return Boundary().role(tensor)

    def _meet(self, checkpoint: Any) -> None:
        # What a backward computes again is gone when it has passed.
        if checkpoint is not None and checkpoint not in self._met and torch._C._current_graph_task_id() == -1:
            self._met.add(checkpoint)
            self._waiting.append(weakref.ref(checkpoint))

    def _meet_below(self, frame: FrameType | None, tensor: Tensor) -> None:
        """Meets the checkpoint that saves a positional input: the only way to one whose segment makes no call that
        anybody sees, such as a compiled one."""
        while frame is not None and frame.f_globals.get("__name__") == _CHECKPOINT:
            names = frame.f_locals
            if "new_frame" in names:
                self._meet(names["new_frame"])
                return
            if "function" in names and "args" in names:  # a reentrant one; told of with the first tensor that it saves
                if next((value for value in names["args"] if isinstance(value, Tensor)), None) is tensor:
                    self._tell_of_reentrant([names["function"], *names["args"]])
                return
            frame = frame.f_back

    def _tell_of_reentrant(self, held: list[Any]) -> None:
        """Records what it keeps. Its backward runs on into the graphs of such tensors, by themselves, so a stored form
        would have to bring these along."""
        found = _Found(self._born)
        rebuilder = Rebuilder(found)
        for value in held:
            if not isinstance(value, Tensor):
                rebuilder.visit(value)
        self._reentrant += found.keep_all(self._packer, _REENTRANT)

    def _replace(self, checkpoint: Any) -> None:
        owners = _owners_of_functions(checkpoint)
        functions = [getattr(owner, name) for owner, name in owners]
        if any(isinstance(function, _Again) for function in functions):  # by a session around this one, or inside
            return
        found = _Found(self._born)
        rebuilder = Rebuilder(found)
        with torch._C.DisableTorchFunction():
            functions = [rebuilder.visit(function) for function in functions]
            args = [rebuilder.visit(value) for value in getattr(checkpoint, "saved_args", ())]
            if not found:
                return
            if rebuilder.circular:
                functions = [getattr(owner, name) for owner, name in owners]
                exact = found.keep_all(self._packer, _CIRCULAR)
            else:
                exact = found.store_all(self._packer)
                if args:
                    checkpoint.saved_args = args
        for (owner, name), function in zip(owners, functions, strict=True):
            setattr(owner, name, _Again(function, exact))


class _Slot(Place):
    """Where a checkpoint held a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor  # None once it is stored
        self._packed: Packed | None = None
        self._node: Any = None

    def store(self, packed: Packed) -> None:
        """Lets the tensor go; its place in the graph is kept, as that of a positional input is."""
        assert self.tensor is not None
        if self.tensor.requires_grad:
            with torch.enable_grad(), saved_tensors_hooks(lambda tensor: packed, unpack):
                self._node = _Save.apply(self.tensor).grad_fn
        else:
            self._packed = packed
        self.tensor = None

    def build(self, built: Built) -> Any:
        if self.tensor is not None:
            return self.tensor
        return self._node.saved_tensors[0] if self._packed is None else unpack(self._packed)


class _Save(torch.autograd.Function):
    """Saves a tensor, and is never run backwards."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return tensor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nobody has the result of this function")


@dataclass
class _Found:
    """The tensors that a checkpoint holds and that this forward has made.

    Attributes:
        born: storages that the forward has made.
        slots: where they are, for those that can be stored.
        left: the others, with what holds them.
    """

    born: StorageSet
    slots: list[_Slot] = field(default_factory=list)
    left: list[tuple[Tensor, object]] = field(default_factory=list)

    def found(self, tensor: Tensor) -> Place | None:
        """What is to stand in the tensor's place; ``None`` for one that somebody else made."""
        if not self._is_ours(tensor):
            return None
        self.slots.append(_Slot(tensor))
        return self.slots[-1]

    def out_of_reach(self, tensor: Tensor, holder: object) -> None:
        """A tensor is in an object that nobody here knows how to make again."""
        if self._is_ours(tensor):
            self.left.append((tensor, holder))

    def _is_ours(self, tensor: Tensor) -> bool:
        """As for positional ones: what has a history is an activation, and a leaf is if the forward has made it. A
        leaf that requires a gradient is left to who asks for that."""
        if tensor.grad_fn is not None:
            return True
        return not tensor.requires_grad and any(storage in self.born for storage in storages_of(tensor))

    def __bool__(self) -> bool:
        return bool(self.slots or self.left)

    def store_all(self, packer: Packer) -> list[Packed]:
        """Stores what can be stored; the rest is returned, as it is kept."""
        exact: list[Packed] = []
        for slot in self.slots:
            assert slot.tensor is not None
            packed = packer.pack_held(slot.tensor)
            if isinstance(packed, Exact):
                exact.append(packed)
            else:
                slot.store(packed)
        for tensor, holder in self.left:
            why = f"a checkpoint holds it in a {type(holder).__name__}, which only its own code can make: kept exactly"
            exact.append(packer.keep_held(tensor, why))
        return exact

    def keep_all(self, packer: Packer, why: str) -> list[Packed]:
        """Stores nothing, for a reason."""
        tensors = [slot.tensor for slot in self.slots if slot.tensor is not None]
        return [packer.keep_held(tensor, why) for tensor in [*tensors, *(tensor for tensor, _ in self.left)]]


class _Again:
    """In the place of a function that held tensors: puts it together for each call."""

    def __init__(self, function: Any, exact: list[Packed]) -> None:
        self._function = function
        self._exact = exact  # what this function still keeps: others that save its storage need no copy

    def __call__(self, *args: Any) -> Any:
        built: Built = {}
        function = build(self._function, built)
        return function(*(build(value, built) for value in args))


def _checkpoint_of(hook: Any) -> Any:
    """The checkpoint whose pack hook this is; ``None`` for other hooks, such as that of a segment's second run."""
    kind = getattr(torch_checkpoint, "_CheckpointFrame", None)
    code, cells = getattr(hook, "__code__", None), getattr(hook, "__closure__", None) or ()
    if kind is None or code is None or "frame" not in code.co_freevars or hook.__module__ != _CHECKPOINT:
        return None
    found = cells[code.co_freevars.index("frame")].cell_contents
    return found if isinstance(found, kind) else None


def _owners_of_functions(checkpoint: Any) -> list[tuple[Any, str]]:
    """Where a checkpoint has the functions through which it holds what it was given, as object and attribute."""
    owners = [(checkpoint, "recompute_fn")]
    saver = getattr(checkpoint, "input_saver", None)  # before torch 2.13
    if saver is not None:
        owners.append((saver.grad_fn, "get_args"))
    return owners
