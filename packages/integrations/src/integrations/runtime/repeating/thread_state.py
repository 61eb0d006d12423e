"""The state of a thread: whether it follows a plan or repeats a segment; and the generators that forwards and
repetitions draw from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from integrations._utils.torch_internals import AutoDispatchBelowAutograd, DisableAutocast, set_grad_enabled

Result = TypeVar("Result")


class _Here(threading.local):
    """The state of this thread.

    Attributes:
        repeating: whether the thread repeats a segment. A forward's tape must not follow that.
        following: whether it runs a forward that follows a plan.
    """

    repeating = False
    following = False


here = _Here()

drawing = threading.RLock()
"""Held while a forward or a repetition draws. Threads share their device's generator: a draw by one of them, between
the moment at which another reads or sets the state and its own draw, would give the repetition other numbers."""


def require_no_plan() -> None:
    """Raises inside of a forward that follows a plan, for contexts that change what a forward keeps.

    Raises:
        RuntimeError: this thread is in such a forward.
    """
    if here.following:
        raise RuntimeError(
            "a forward that is compressed or follows a plan must not run inside of a forward that follows a plan, "
            "because that plan handles all saved tensors: undo one of the two, integrations.restore_model(model) or "
            "integrations.checkpoint.restore_model(model)"
        )


@contextmanager
def aside() -> Iterator[None]:
    """A block whose operators belong to no forward."""
    before, here.repeating = here.repeating, True
    try:
        yield
    finally:
        here.repeating = before


def repeated(function: Callable[..., Result], *args: Any) -> Result:
    """What a function returns that repeats a segment, below autograd and autocast: the tape saw operators there, with
    casts as operators of their own. No block of Python's, since an interrupt may come where such a block ends."""
    before, grad = here.repeating, torch.is_grad_enabled()
    try:
        with AutoDispatchBelowAutograd(), DisableAutocast():
            here.repeating = True
            return function(*args)
    finally:
        here.repeating = before
        set_grad_enabled(grad)


@contextmanager
def generator_at(source: torch.Generator, before: Tensor) -> Iterator[None]:
    """A block in which a generator is in the state that it had before a call."""
    now = source.get_state()
    source.set_state(before)
    try:
        yield
    finally:
        source.set_state(now)
