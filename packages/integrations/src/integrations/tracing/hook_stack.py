"""A session's pair among the saved-tensor hooks of its thread: a stack that others push to and pop from, too.

Torch pops whichever pair is on top. So a pair that a forward pushed and left there would be popped in place of the
session's, whose hooks then stayed for good; and where a forward pops a pair too many, it pops the session's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from integrations._utils.torch_internals import (
    HookPair,
    pop_saved_tensors_default_hooks,
    push_saved_tensors_default_hooks,
    top_saved_tensors_default_hooks,
)


class OnStack:
    """A context in which a pair of hooks is on the stack. On exit this pair is removed, and no other.

    Args:
        pack, unpack: the pair.
        what: what runs in the context, in words.
    """

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any], what: str) -> None:
        self._pair, self._what = (pack, unpack), what
        self._below = -1  # counts, since the same pair may be there more than once; -1: not counted yet

    def __enter__(self) -> Self:
        self._below = 0 if _top() is None else len(_all())
        push_saved_tensors_default_hooks(*self._pair)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises ``RuntimeError`` if the stack is not as it was left; warns instead if an error is being raised."""
        if self._below == 0 and self._is_ours(_top()):
            pop_saved_tensors_default_hooks()
            self._below = -1
            return
        found = _all()
        if len(found) == self._below + 1 and self._is_ours(found[-1]):
            pop_saved_tensors_default_hooks()
            return
        if len(found) > self._below and self._is_ours(found[self._below]):
            others = found[self._below + 1 :]
            told = (
                f"{self._what} pushed saved-tensor hooks and did not pop them: {', '.join(map(_named, others))}. "
                "Tensors saved after that went to these hooks and are not compressed. Exit their context in the "
                "code that entered it (with torch.autograd.graph.saved_tensors_hooks(...):), or enter it around the "
                "whole forward. The hooks stay active, as without compression"
            )
            del found[self._below]
        else:
            # As without compression: the forward meant to pop the pair below.
            gone = [found.pop(min(self._below, len(found)) - 1)] if self._below and found else []
            whose = f" ({_named(gone[0])})" if gone else ""
            told = (
                f"{self._what} popped saved-tensor hooks that it had not pushed{whose}, and so removed the hooks of "
                "the compression: tensors saved after that are not compressed. Exit the context of these hooks "
                "outside of it, in the code that entered the context"
            )
        _replace(found)
        if error is None:
            raise RuntimeError(told)
        warnings.warn(told, stacklevel=2)

    def take_off(self) -> None:
        """Removes the pair where it still is: an interrupt may have come while it was entered or left."""
        if self._below < 0 or not self._is_ours(_top()):
            return
        found = _all()
        if len(found) > self._below and self._is_ours(found[self._below]):
            del found[self._below]
            _replace(found)

    def _is_ours(self, pair: HookPair | None) -> bool:
        return pair is not None and pair[0] is self._pair[0] and pair[1] is self._pair[1]


_MOVE = ("offload", "save_on_cpu")  # what names of hooks that move tensors to the host contain


def offloader_around() -> str:
    """The name of the hooks on top of the stack, if it says that they move tensors to the host; else empty.

    Those of ``torch.autograd.graph.save_on_cpu``, and of libraries that offload activations.
    """
    pair = _top()
    if pair is None or not any(word in _hook_or_class(pair).__qualname__.lower() for word in _MOVE):
        return ""
    return _named(pair).partition(".__init__.")[0]  # the class, of a hook that is made in its constructor


def _top() -> HookPair | None:
    return top_saved_tensors_default_hooks(True)


def _all() -> list[HookPair]:
    """The pairs on the stack, the innermost last. Torch shows that one alone: all are popped, and pushed again, even if
    an interrupt comes meanwhile."""
    found: list[HookPair] = []
    again = 0

    def push() -> None:
        nonlocal again
        while again < len(found):
            again += 1
            push_saved_tensors_default_hooks(*found[-again])

    try:
        while (pair := _top()) is not None:
            found += [pair]  # no call, so that a pair is noted and popped, or neither
            pop_saved_tensors_default_hooks()
        push()
    except BaseException:
        push()
        raise
    return found[::-1]


def _replace(pairs: list[HookPair]) -> None:
    """Has these pairs on the stack and no others, even if an interrupt comes meanwhile."""

    def replace() -> None:
        while _top() is not None:
            pop_saved_tensors_default_hooks()
        for pair in pairs:
            push_saved_tensors_default_hooks(*pair)

    try:
        replace()
    except BaseException:
        replace()
        raise


def _named(pair: HookPair) -> str:
    """A pair's name: module and name of its pack hook, or of the hook's class."""
    named = _hook_or_class(pair)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def _hook_or_class(pair: HookPair) -> Any:
    return pair[0] if hasattr(pair[0], "__qualname__") else type(pair[0])
