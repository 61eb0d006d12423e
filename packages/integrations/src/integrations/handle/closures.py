"""What a closure must be for something to be measured with it, and why nothing was."""

from __future__ import annotations

from typing import Any

from torch import nn

from integrations.handle.handle_state import HandleState
from integrations.handle.unused import why_unused


def require_closure(closure: Any) -> None:
    """Refuses what cannot be called.

    Raises:
        TypeError: so it is.
    """
    if not callable(closure):
        raise TypeError(
            f"closure must be a function that runs forward and backward, got {closure!r}; pass it without calling it"
        )


def require_compressed(handle: HandleState, name: str) -> None:
    """Refuses ``handle.<name>`` where the handle compresses nothing any more.

    Raises:
        RuntimeError: its model was restored.
    """
    if handle.closed:
        raise RuntimeError(
            f"handle.{name} needs a model that is compressed, and this {type(handle.model).__name__} was restored: "
            "compress it again, and take its new handle, integrations.compression(model)"
        )


class NothingCompressed(RuntimeError):
    """A closure ran no compressed forward of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            "closure must run a forward of the compressed model and its backward; it ran no compressed forward of "
            f"{type(model).__name__}: {why_unused(model)}"
        )
