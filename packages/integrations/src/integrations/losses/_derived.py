"""The outputs of a layer that were not computed, and what was done to them since."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from integrations._utils.autocast import autocast_on


@dataclass(eq=False)
class Source:
    """A call of a layer that makes logits. Everything that is derived from its outputs shares it.

    Args:
        hidden: (..., features), the layer's input.
        classes: size of the outputs' last dimension.
        layer: computes the outputs, each row from the same row of the input.
        parameters: the layer's.
        linear: weight and bias of a layer that has nothing else; else ``None``.
        made_whole: called with the name of each function that needs the logits themselves, and whether a loss was
            computed without them before.
        in_chunks: called with the rows of a chunk for a loss without logits.
        rows: the rows of a chunk by a plan; ``None`` for the default.
    """

    hidden: Tensor
    classes: int
    layer: Callable[[Tensor], Tensor]
    parameters: Callable[[], tuple[Tensor, ...]]
    linear: tuple[Tensor, Tensor | None] | None
    made_whole: Callable[[str, bool], None]
    in_chunks: Callable[[int], None]
    rows: int | None = None
    answered: bool = field(default=False, init=False)
    """Whether a loss was computed without the logits, which then get no gradient."""
    derived: list[weakref.ref[Derived]] = field(default_factory=list, init=False, repr=False)
    """What was derived from the outputs before they were computed."""
    _logits: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._autocast = autocast_on(self.hidden.device)
        self._given = self.parameters()
        self._versions = [tensor._version for tensor in (self.hidden, *self._given)]

    @property
    def wanting(self) -> tuple[Tensor, ...]:
        """The parameters that require a gradient."""
        return tuple(tensor for tensor in self._given if tensor.requires_grad)

    @property
    def made(self) -> bool:
        """Whether the outputs were computed. From then on they are used for everything: they may be written to, and
        have hooks."""
        return self._logits is not None

    def logits(self) -> Tensor:
        """The outputs with their history. Each call returns the same tensor."""
        if self._logits is None:
            # Even if they are only looked at now: they may be differentiated later.
            with self.computing(), torch.enable_grad():
                self._logits = self.layer(self.hidden)
            # They may be written to from now on, which a copy that was made before must not see.
            for one in self.derived:
                if (alive := one()) is not None:
                    alive.logits()
        return self._logits

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A block that calls the layer as it would have been called, under the autocast of its call.

        Raises:
            RuntimeError: the layer would compute something else now.
        """
        self._require_unchanged()
        if self.hidden.device.type == "meta":  # which has no autocast
            yield
            return
        # Without autocast's cache, whose casts belong to a block that is over.
        enabled = self._autocast is not None
        with torch.autocast(self.hidden.device.type, self._autocast, enabled, cache_enabled=False):
            yield

    def _require_unchanged(self) -> None:
        tensors = (self.hidden, *self._given)
        if any(one.untyped_storage().nbytes() < one.nbytes for one in tensors if one.device.type != "meta"):
            raise RuntimeError(
                "the loss of chunked logits must be computed in the model's forward, because FSDP reshards the weights "
                "after it: pass labels to the model, use fully_shard with reshard_after_forward=False, or pass "
                "loss='full' to compress_model"
            )
        now = self.parameters()
        same = len(now) == len(self._given) and all(one is other for one, other in zip(now, self._given, strict=True))
        if not same or [tensor._version for tensor in tensors] != self._versions:
            raise RuntimeError(
                "chunked logits must be read before the weights or the input of their layer change, as in "
                "optimizer.step(): read them earlier, or pass loss='full' to compress_model"
            )


@dataclass(eq=False)
class Derived:
    """What was done to a layer's outputs.

    Args:
        source: the layer's call.
        hidden: (..., features), the layer's input, with its rows cut and reshaped as those of the outputs were.
        dtype: the dtype that the outputs have now.
        scale, cap: the values now are ``scale * outputs``, or ``cap * tanh(scale / cap * outputs)`` if ``cap`` is not
            0.
        normalized: whether ``log_softmax`` over the classes was applied to these values.
        before: what it was derived from in one step; ``None`` for the outputs themselves.
        step: what is applied to the values of ``before``.
        differentiable: whether it was derived with gradients on.
    """

    source: Source
    hidden: Tensor
    dtype: torch.dtype
    scale: float = 1.0
    cap: float = 0.0
    normalized: bool = False
    before: Derived | None = None
    step: Callable[[Tensor], Tensor] | None = None
    differentiable: bool = True
    _made: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.source.derived.append(weakref.ref(self))

    @property
    def shape(self) -> torch.Size:
        """The shape of the outputs now."""
        return torch.Size((*self.hidden.shape[:-1], self.source.classes))

    @property
    def made(self) -> bool:
        """Whether the outputs as they are now were computed."""
        return self._made is not None

    def then(self, step: Callable[[Tensor], Tensor], **changes: Any) -> Derived:
        """The outputs after one more step."""
        differentiable = self.differentiable and torch.is_grad_enabled()
        return replace(self, before=self, step=step, differentiable=differentiable, **changes)

    def logits(self) -> Tensor:
        """The outputs themselves after all steps, with their history. Each call returns the same tensor, and what is a
        view of what is one of these, too."""
        made = self.source.logits()  # which may call this
        if self._made is None:
            if self.before is not None and self.step is not None:
                with torch.set_grad_enabled(self.differentiable):
                    made = self.step(self.before.logits())
            self._made = made
            self.before = self.step = None  # whose values may be let go
        return self._made
