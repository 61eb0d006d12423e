"""``catch_gradients``: a tensor's value and its gradient, kept for statistics such as a variance."""

from __future__ import annotations

import torch
from torch import Tensor


class GradientStorage:
    """Copies of a tensor and of the gradient that came back to it.

    Attributes:
        input: what ``catch_gradients`` was given last; ``None`` before.
        grad_output: its gradient; ``None`` before backward.
    """

    def __init__(self) -> None:
        self.input: Tensor | None = None
        self.grad_output: Tensor | None = None

    def forward(self, input: Tensor) -> None:
        """Copies a tensor, without its history."""
        self.input = input.detach().clone()

    def backward(self, grad_output: Tensor) -> None:
        """Copies a gradient, without its history, and calls ``postprocess``."""
        self.grad_output = grad_output.detach().clone()
        self.postprocess()

    def postprocess(self) -> None:
        """Called with each gradient, to be overridden; does nothing."""


def catch_gradients(x: Tensor, storage: GradientStorage) -> Tensor:
    """``x``, whose value and gradient are copied into ``storage``.

    Without gradients nothing is copied.

    Args:
        x: any tensor.
        storage: where to; one for each place in a model.

    Returns:
        A view of ``x``; the gradient that is caught is the one that reaches ``x`` through it.

    Raises:
        TypeError: ``storage`` is not a ``GradientStorage``.
    """
    if not isinstance(storage, GradientStorage):
        raise TypeError(f"storage must be a GradientStorage, got {type(storage).__name__}")
    if not torch.is_grad_enabled():
        return x
    storage.forward(x)
    if not x.requires_grad:
        return x
    caught = x.view_as(x)
    caught.register_hook(storage.backward)
    return caught
