"""A linear layer's outputs that were not computed, and what was done to them since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(eq=False)
class Source:
    """A call of a layer that makes logits, which all that is derived from its outputs shares.

    Args:
        hidden: (..., features), the layer's input.
        classes: size of the outputs' last dimension.
        layer: computes the outputs, row by row.
        parameters: of the layer, those that want a gradient.
        linear: weight and bias, of a layer that is nothing but these; else ``None``.
        made_whole: told the function for which the logits are made.
        in_chunks: told of how many rows chunks were, for a loss without them.
    """

    hidden: Tensor
    classes: int
    layer: Callable[[Tensor], Tensor]
    parameters: tuple[Tensor, ...]
    linear: tuple[Tensor, Tensor | None] | None
    made_whole: Callable[[str], None]
    in_chunks: Callable[[int], None]
    final: bool = field(default=False, init=False)
    """Whether the logits were written to, or are listened to: nothing may be computed without them any more."""
    answered: bool = field(default=False, init=False)
    """Whether a loss was computed without them, which gives them no gradient."""
    _logits: Tensor | None = field(default=None, init=False, repr=False)

    def require_parameters(self) -> None:
        """Refuses to compute with parameters whose memory is gone.

        Raises:
            RuntimeError: FSDP gave it back when the model's forward was over.
        """
        if any(one.untyped_storage().nbytes() < one.nbytes for one in self.parameters if one.device.type != "meta"):
            raise RuntimeError(
                "the loss of chunked logits must be computed in the forward of the model, whose weights FSDP has taken "
                "back: give the model its labels, fully_shard it with reshard_after_forward=False, or leave "
                "loss='chunked' out"
            )

    def logits(self) -> Tensor:
        """The outputs, with their history; the same at each call."""
        if self._logits is None:
            self.require_parameters()
            self._logits = self.layer(self.hidden)
        return self._logits


@dataclass(frozen=True)
class Derived:
    """What was done to a layer's outputs.

    Args:
        source: of them.
        hidden: (..., features), the layer's input, with its rows cut and shaped as those of the outputs were.
        dtype: that the outputs have now.
        steps: what was done, for the outputs themselves.
        scale, cap: ``scale * outputs``, or ``cap * tanh(scale / cap * outputs)`` if ``cap`` is not 0, are their values.
    """

    source: Source
    hidden: Tensor
    dtype: torch.dtype
    steps: tuple[Callable[[Tensor], Tensor], ...] = ()
    scale: float = 1.0
    cap: float = 0.0

    @property
    def shape(self) -> torch.Size:
        """Of the outputs now."""
        return torch.Size((*self.hidden.shape[:-1], self.source.classes))

    def then(self, step: Callable[[Tensor], Tensor], **changes: Any) -> Derived:
        """After one more step."""
        return replace(self, steps=(*self.steps, step), **changes)

    def of(self, logits: Tensor) -> Tensor:
        """What was done to the layer's outputs, done to these."""
        for step in self.steps:
            logits = step(logits)
        return logits
