"""What a trial run meets, and leaves as it was: gradients, buffers, Q-layers, and other models' handles.

A closure runs more than the measured model: a GAN's discriminator, a teacher, a loss with weights of its own. These are
met when they take part: a leaf when a call gets it or a backward reaches it, a module when a call is made in its
forward, a handle when a forward of its model starts. What was not met was not changed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.weak import WeakTensorKeyDictionary

from integrations._utils.running_module import module_called_in
from integrations._utils.unwatched import unwatched_blocks
from integrations.tracing.tensors import MOST_NODES, find_node, has_history

_here = threading.local()  # .met: of the trial run in this thread


class Trained(Protocol):
    """The handle of a compressed model, as a trial run of another one meets it.

    Attributes:
        step: forwards compressed so far.
    """

    step: int

    @property
    def model(self) -> nn.Module:
        """The model whose handle it is."""

    @property
    def in_trial(self) -> bool:
        """Whether forwards that start now are not steps of the training."""

    def trial_run(self) -> AbstractContextManager[None]:
        """A block whose forwards are not steps of the training; the step is put back afterwards."""


class Met:
    """What one trial run has met so far, as it was then."""

    def __init__(self) -> None:
        # Weakly, so that a leaf that the closure has made, such as a checkpoint's detached input, is not kept alive.
        self._gradients = WeakTensorKeyDictionary()  # by leaf: its gradient, and a copy of a gradient that is a view
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._handles: list[tuple[Trained, int]] = []
        self._redraws: list[Callable[[], None]] = []  # of the modules' own noise
        self._undo = ExitStack()

    def leaves(self, tensors: Iterable[Tensor]) -> None:
        """Sets the gradients of the leaves among the tensors to ``None``, so that an existing gradient keeps its
        values. A gradient that is a view, such as DistributedDataParallel's in its buckets, is copied."""
        for leaf in tensors:
            if leaf.requires_grad and not has_history(leaf) and leaf not in self._gradients:
                grad = leaf.grad
                self._gradients[leaf] = grad, None if grad is None or grad._base is None else grad.clone()
                leaf.grad = None

    def graph(self, roots: Iterable[Tensor]) -> None:
        """Meets the leaves that a backward from the roots reaches: those of a compiled function are in no call.

        Raises:
            RuntimeError: there are more nodes on the way than may be searched.
        """
        waiting = [node for root in roots if (node := find_node(root)) is not None]
        seen: set[Node] = set(waiting)
        while waiting:
            node = waiting.pop()
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor):
                self.leaves([leaf])
            following = {other for other, _ in node.next_functions if other is not None} - seen
            seen |= following
            waiting += following
            if len(seen) > MOST_NODES:
                raise RuntimeError(
                    f"the closure's backward must go through at most {MOST_NODES} autograd nodes, but goes through "
                    "more: torch cannot free a graph after so many of its nodes were read. Use torch.compile or "
                    "checkpoints, which make fewer nodes, or a level of fixed bits, such as 'L1', which reads none"
                )

    def modules(self, modules: Iterable[nn.Module]) -> None:
        """Copies the buffers that are the modules' own, and has Q-layers learn nothing from the run."""
        for module in modules:
            if module not in self._modules:
                self._modules.add(module)
                self._buffers += [(buffer, buffer.detach().clone()) for buffer in module.buffers(recurse=False)]
                self._redraws += map(self._undo.enter_context, unwatched_blocks(module))

    def running_modules(self) -> None:
        """Meets the modules in whose forward the caller is."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = module_called_in(frame)
            if module is not None:
                if module in self._modules:
                    return  # and so are the modules around it
                self.modules([module])
            frame = frame.f_back

    def handle(self, handle: Trained) -> None:
        """Has a handle's forwards not count as steps of its training."""
        self._handles.append((handle, handle.step))
        self._undo.enter_context(handle.trial_run())
        self.modules(handle.model.modules())

    def draw_again(self) -> None:
        """Has the next forwards of Q-layers and of other models draw the noise that they drew first."""
        for handle, step in self._handles:
            handle.step = step
        for redraw in self._redraws:
            redraw()

    def restore(self) -> None:
        """Puts everything back."""
        self._undo.close()
        with torch.no_grad():
            for leaf, (grad, value) in self._gradients.items():
                leaf.grad = grad
                if value is not None and leaf.grad is not None:
                    leaf.grad.copy_(value)
            for buffer, value in self._buffers:
                buffer.copy_(value)


@contextmanager
def surroundings(model: nn.Module) -> Iterator[Met]:
    """A block in which what this thread meets is noted, and put back at the end."""
    met, outer = Met(), getattr(_here, "met", None)
    try:
        met.leaves(model.parameters())
        met.modules(model.modules())
        _here.met = met
        yield met
    finally:
        _here.met = outer
        try:
            met.restore()
        except BaseException:  # an interrupt, say, which would leave the user without gradients
            met.restore()
            raise


def meet(handle: Trained) -> None:
    """Notes, if this thread is in a trial run of another model, that a forward of the handle's model starts."""
    met = current_trial()
    if met is not None and not handle.in_trial:
        met.handle(handle)


def current_trial() -> Met | None:
    """Return what this thread's trial run has met; ``None`` outside of trial runs."""
    met: Met | None = getattr(_here, "met", None)
    return met


def undo_after_trial(undo: Callable[[], object]) -> bool:
    """Has ``undo`` called when this thread's trial run ends. Returns whether it is in one."""
    met = current_trial()
    if met is not None:
        met._undo.callback(undo)
    return met is not None
