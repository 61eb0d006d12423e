"""``Version``: whether a tensor has been changed in place since it was saved."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard, FakeTensor
from integrations.capture.dispatch.memory import Geometry, is_plain


class Version:
    """A saved tensor's version. Autograd itself checks versions only where no hook is active."""

    __slots__ = ("_counter", "_found")

    def __init__(self, tensor: Tensor) -> None:
        self._found = tensor._version
        # The alias shares the version counter and nothing else. Each tensor has a version of its own: a part of the
        # memory may be written that others do not see.
        self._counter = unseen_alias(tensor)
        if not tensor.is_meta:  # it has no memory to let go, and takes no other device's data
            self._counter.data = EMPTY

    def check(self, geometry: Geometry) -> None:
        """Raises ``RuntimeError`` if the tensor was changed in place since; the message is torch's."""
        found = self._counter._version
        if found != self._found:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{geometry.dtype} {list(geometry.size)}] is at version {found}; expected version {self._found} "
                "instead. Hint: a plan keeps or recomputes it for backward as it was saved; use an out-of-place "
                "operation, or change the tensor after backward."
            )


EMPTY = torch.empty(0)


def unseen_alias(tensor: Tensor) -> Tensor:
    """The tensor, detached without asking the modes: 4 us instead of 28."""
    with unseen(tensor):
        return tensor.detach()


def unseen(tensor: Tensor) -> AbstractContextManager[Any]:
    """A block in which modes do not see operations on the tensor, if the tensor can do without them."""
    if isinstance(tensor, FakeTensor) or not is_plain(tensor):
        return nullcontext()
    guard: AbstractContextManager[Any] = ExcludeDispatchKeyGuard(_modes())
    return guard


@cache
def _modes() -> Any:
    """The dispatch keys by which torch calls modes."""
    return DispatchKeySet(DispatchKey.Python).add(DispatchKey.PythonTLSSnapshot)
