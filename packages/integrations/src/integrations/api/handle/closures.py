"""The requirements on a closure that something is measured with, and why nothing was measured."""

from __future__ import annotations

from typing import Any

from torch import nn

from integrations.api.handle.handle_state import HandleState
from integrations.api.handle.never_compressed_warning import why_unused


def require_closure(closure: Any) -> None:
    """Checks that the closure can be called.

    Raises:
        TypeError: it cannot.
    """
    if not callable(closure):
        raise TypeError(
            f"closure must be a function that runs forward and backward, got {closure!r}; pass it without calling it"
        )


def require_compressed(handle: HandleState, name: str) -> None:
    """Checks that a handle still compresses its model, for ``handle.<name>``.

    Raises:
        RuntimeError: its model was restored.
    """
    if handle.closed:
        raise RuntimeError(
            f"handle.{name} needs a compressed model, but this {type(handle.model).__name__} was restored: compress "
            "it again and use its new handle, integrations.compression(model)"
        )


class NothingCompressed(RuntimeError):
    """A closure ran no compressed forward of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            "closure must run a forward of the compressed model and its backward; it ran no compressed forward of "
            f"{type(model).__name__}: {why_unused(model)}"
        )
