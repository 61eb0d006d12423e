"""The inputs of ``torch.utils.checkpoint``, from which backward recomputes a segment.

Autograd saves the positional ones in a function of checkpoint's own, which no ``TorchFunctionMode`` sees; the Python
stack tells of it. The others, keyword arguments, tensors in containers and those in the segment's closure, are not
saved: they live because the function lives that recomputes the segment. They stay as they are, and the report says so.
A checkpoint's pack hook leads to its object (``find_checkpoint``), by whichever name or wrapper ``checkpoint`` was
called.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import checkpoint as torch_checkpoint

from actcore.replay import bind_checkpoints
from integrations._utils.storages import StorageSet
from integrations._utils.torch_internals import (
    DYNAMO,
    CheckpointFrame,
    DisableTorchFunction,
    current_graph_task_id,
    len_torch_dispatch_stack,
    top_saved_tensors_default_hooks,
)
from integrations.tracing.call import Call
from integrations.tracing.checkpoint_held import given_to, held_tensors
from integrations.tracing.data_dependence import DECIDES, Deciding, HeldInput, Scripts
from integrations.tracing.masks import may_be_masked
from integrations.tracing.storage.forms import Packed

_CHECKPOINT = torch_checkpoint.checkpoint.__module__
_BETWEEN = ("torch.autograd", DYNAMO, "integrations.runtime", "integrations.tracing", "actcore")
"""Modules whose frames lie between a checkpoint's saving of a tensor and our hook."""

_HELD = (
    "a checkpoint holds it as a keyword argument, in a container or in its function's closure: kept exactly; pass "
    "it as a positional argument to compress it"
)
_REENTRANT = "a checkpoint with use_reentrant=True holds it outside of its positional arguments: kept exactly"


class Packer(Protocol):
    """Stores what a checkpoint holds."""

    def pack_held(self, tensor: Tensor, obstacle: str = "") -> Packed:
        """Keeps a tensor exactly, with an obstacle as the reason."""


class Boundary(Call):
    """In the place of a call: a checkpoint, which holds a tensor."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(torch_checkpoint.checkpoint, (), {})

    def role(self, tensor: Tensor, storage: torch.UntypedStorage | None) -> str:
        """``"input"`` if a gradient goes through the tensor, and no mask is in it; else ``"other"``."""
        return _role(tensor)


class Checkpoints:
    """The checkpoints that a forward enters, and what they hold besides what autograd saves for them.

    Args:
        packer: the forward's.
        own: the forward's pack hook.
        born: storages that the forward has made.

    Attributes:
        entered: whether the forward has entered one.
        around: makes a block for storing when a checkpoint is over. Its operators are not the forward's.
    """

    __slots__ = (
        "_born", "_decided", "_deciding", "_entered", "_held", "_inputs", "_inside", "_met", "_own", "_packer",
        "_reentrant", "_scripts", "_unseen_decided", "_unseen_is_over", "_waiting", "around", "entered",
    )  # fmt: skip

    def __init__(self, packer: Packer, own: Callable[[Tensor], Any], born: StorageSet) -> None:
        self._packer, self._own, self._born = packer, own, born
        self.entered = False
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting: list[weakref.ref[Any]] = []  # checkpoints whose segment may still run
        # What a checkpoint holds. While these live, other tensors in their storages are kept, too.
        self._held: weakref.WeakKeyDictionary[Any, list[Packed]] = weakref.WeakKeyDictionary()
        self._reentrant: list[Packed] = []
        self._inside = False  # whether this is inside of a segment, as far as hooks tell
        self._deciding, self._scripts = Deciding(), Scripts()
        self._decided: weakref.WeakSet[Any] = weakref.WeakSet()
        # Whether something was decided, and whether a call ended, without gradients since the last call with them or
        # the last saved input: that is a reentrant segment.
        self._unseen_decided = self._unseen_is_over = False
        self._inputs: weakref.WeakKeyDictionary[Any, list[HeldInput]] = weakref.WeakKeyDictionary()
        self._entered: Any = None  # the checkpoint that saves its positional inputs now

    def look(self) -> None:
        """Notes the checkpoint that the caller is in, and settles those that are over.

        ``CallTracker`` calls this, and ``over``, where they may have something to do (``csrc/bindings/calls.cpp``).
        """
        hooks = top_saved_tensors_default_hooks(False)
        hook = None if hooks is None else hooks[0]
        self._inside = inside = hook is not None and hook is not self._own
        if inside:
            self.entered = True
            self._meet(find_checkpoint(hook))
        # A selective checkpoint counts each operator that runs inside of it: ours must wait.
        if self._waiting and not (inside and len_torch_dispatch_stack()):
            with self.around():
                self.settle()

    def over(self, call: Call, outputs: Sequence[Tensor]) -> None:
        """Notes whether a call that is over decided something in a segment."""
        if self._unseen_is_over or (not self._inside and torch.is_grad_enabled()):
            self._unseen_decided = self._unseen_is_over = False
        if not self._inside and torch.is_grad_enabled():
            return
        if self._deciding.decides(call, outputs):
            self._unseen_decided |= not self._inside
            for reference in self._waiting if self._inside else ():
                checkpoint = reference()
                if checkpoint is not None and not checkpoint.forward_completed:
                    self._decided.add(checkpoint)

    def settle(self) -> None:
        """Settles what the checkpoints hold whose segment is over. Before, the segment may still change what it was
        given, and what backward recomputes follows that."""
        waiting, self._waiting = self._waiting, []
        for reference in waiting:
            checkpoint = reference()
            if checkpoint is not None and not checkpoint.forward_completed:
                self._waiting.append(reference)
            elif checkpoint is not None:
                decided = checkpoint in self._decided
                with DisableTorchFunction():
                    for saved in self._inputs.pop(checkpoint, ()):
                        saved.settle(decided)
                    self._held[checkpoint] = self._keep(given_to(checkpoint), _HELD)

    def role(self, tensor: Tensor) -> str:
        """The role in a checkpoint of a tensor that is saved outside of any call, as ``Boundary`` has it; empty if no
        checkpoint saves it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
            frame = frame.f_back
        if frame is None or frame.f_globals.get("__name__") != _CHECKPOINT:
            return ""
        self.entered = True
        self.settle()
        self._entered = None
        self._meet_below(frame, tensor)
        return _role(tensor)

    def obstacle(self) -> str:
        """Why the tensor that a checkpoint saves now is to be kept exactly; empty if nothing speaks against storing it
        so far."""
        if self._entered is not None:
            return ""
        self._unseen_is_over = True
        return DECIDES if self._unseen_decided else ""

    def stored(self, packed: Packed, exactly: Callable[[], Packed | None]) -> Packed:
        """What autograd holds in the place of a checkpoint's input with this stored form.

        Args:
            packed: the stored form.
            exactly: keeps the tensor as it is instead; returns ``None`` if the tensor has changed.
        """
        if self._entered is None:
            return packed
        held = HeldInput(packed, exactly)
        self._inputs.setdefault(self._entered, []).append(held)
        return held

    def _meet(self, checkpoint: Any) -> None:
        # What a backward recomputes is gone once it is over.
        if checkpoint is not None and checkpoint not in self._met and current_graph_task_id() == -1:
            self._met.add(checkpoint)
            self._waiting.append(weakref.ref(checkpoint))
            if self._scripts.are_in(checkpoint.recompute_fn):
                self._decided.add(checkpoint)

    def _meet_below(self, frame: FrameType | None, tensor: Tensor) -> None:
        """Notes the checkpoint that saves a positional input. There is no other way to find one whose segment makes no
        visible call, such as a compiled one."""
        while frame is not None and frame.f_globals.get("__name__") == _CHECKPOINT:
            names = frame.f_locals
            if "new_frame" in names:
                self._meet(names["new_frame"])
                if names["new_frame"] in self._met:
                    self._entered = names["new_frame"]
                return
            if "function" in names and "args" in names:  # a reentrant one, noted with the first tensor that it saves
                if next((value for value in names["args"] if isinstance(value, Tensor)), None) is tensor:
                    others = [value for value in names["args"] if not isinstance(value, Tensor)]
                    self._reentrant += self._keep([names["function"], *others], _REENTRANT)
                    self._unseen_decided |= self._scripts.are_in(names["function"], *names["args"])
                return
            frame = frame.f_back

    def _keep(self, values: list[Any], why: str) -> list[Packed]:
        """Keep the tensors in what a checkpoint holds, for a reason."""
        return [self._packer.pack_held(tensor, why) for tensor in held_tensors(values, self._born)]


bind_checkpoints(
    {
        "Checkpoints": Checkpoints,
        "top_hooks": top_saved_tensors_default_hooks,
        "is_grad_enabled": torch.is_grad_enabled,
    }
)


def _role(tensor: Tensor) -> str:
    return "input" if tensor.requires_grad and not may_be_masked(tensor) else "other"


def find_checkpoint(hook: Any) -> Any:
    """The checkpoint whose pack hook this is; ``None`` for other hooks, such as that of a segment's second run."""
    code, cells = getattr(hook, "__code__", None), getattr(hook, "__closure__", None) or ()
    if code is None or "frame" not in code.co_freevars or hook.__module__ != torch_checkpoint.__name__:
        return None
    found = cells[code.co_freevars.index("frame")].cell_contents
    return found if isinstance(found, CheckpointFrame) else None
