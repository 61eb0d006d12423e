"""Outputs of a layer that are not computed yet, and the operations that were applied to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from integrations._utils.autocast import autocast_on
from integrations.losses._shards import VocabularyShard


def _call_hook(hook: Callable[[Tensor], Any], muted: list[Callable[[Tensor], Any]], gradient: Tensor) -> Any:
    return None if hook in muted else hook(gradient)


def _call(function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
    return function(hidden)


@dataclass(eq=False)
class Source:
    """A call of a layer that makes logits. Everything that is derived from its outputs shares it.

    Args:
        hidden: (..., features), the layer's input.
        classes: size of the outputs' last dimension.
        layer: computes the outputs, each row from the same row of the input.
        parameters: those of its tensors that may get a gradient.
        watched: returns tensors that must be the same, and unchanged, whenever the layer is computed.
        linear: weight and bias of a layer that has nothing else; else ``None``. In tensor parallel, this rank's part.
        made_whole: called with the name of each function that needs the logits themselves, and whether a loss was
            computed without them before.
        in_chunks: called with the rows of a chunk for a loss without logits, and whether there was one before.
        rows: the rows of a chunk by a plan; ``None`` for the default.
        shard: the classes of this rank, in tensor parallel; the outputs of ``layer`` are DTensors then.
        within: calls a function with the layer's input where the layer has its parameters.
    """

    hidden: Tensor
    classes: int
    layer: Callable[[Tensor], Tensor]
    parameters: tuple[Tensor, ...]
    watched: Callable[[], tuple[Tensor, ...]]
    linear: tuple[Tensor, Tensor | None] | None
    made_whole: Callable[[str, bool], None]
    in_chunks: Callable[[int, bool], None]
    rows: int | None = None
    shard: VocabularyShard | None = None
    within: Callable[[Callable[[Tensor], Any], Tensor], Any] = _call
    answered: bool = field(default=False, init=False)
    """Whether a loss was computed without the logits, which then get no gradient."""
    derived: list[weakref.ref[Derived]] = field(default_factory=list, init=False, repr=False)
    """What was derived from the outputs before they were computed."""
    hooks: list[Callable[[Tensor], Any]] = field(default_factory=list, init=False, repr=False)
    """Hooks that ``fully_shard`` or DeepSpeed have registered on the outputs. They prepare a backward, or scale its
    gradient. Each tensor that is computed from the outputs gets these, too."""
    muted: list[Callable[[Tensor], Any]] = field(default_factory=list, init=False, repr=False)
    """Hooks that ``Logits`` have called already, in the part of a backward that goes on from them."""
    _logits: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._autocast = autocast_on(self.hidden.device)
        self._watched = self.watched()
        self._shapes = [tensor.shape for tensor in (self.hidden, *self.parameters)]
        self._versions = [tensor._version for tensor in (self.hidden, *self._watched)]

    @property
    def wanting(self) -> tuple[Tensor, ...]:
        """The parameters that require a gradient."""
        return tuple(tensor for tensor in self.parameters if tensor.requires_grad)

    @property
    def made(self) -> bool:
        """Whether the outputs were computed. From then on they are used for everything: they may be written to, and
        have hooks."""
        return self._logits is not None

    def note_whole(self, function: str) -> None:
        """Note that a function needs the logits themselves.

        Args:
            function: its name.

        Raises:
            ValueError: the plan that is followed does not count them; or a loss was computed without them, and all
                ranks would have to gather them now, but some may not be here.
        """
        if self.answered and not self.made and any(one.is_gathered for one in self._alive()):
            raise ValueError(
                f"{function}() needs whole logits after their loss was computed in chunks, and in tensor parallel all "
                "ranks would have to gather them: read the logits on every rank before the loss, or pass loss='full' "
                "to compress_model"
            )
        self.made_whole(function, self.answered)

    def logits(self) -> Tensor:
        """The outputs with their history. Each call returns the same tensor."""
        if self._logits is None:
            # Even if they are only looked at now: they may be differentiated later.
            with torch.enable_grad():
                self._logits = self.compute(self.layer, self.hidden)
            self.attach(self._logits)
            # They may be written to from now on, which a copy that was made before must not see.
            for one in self._alive():
                one.logits()
        return self._logits

    def _alive(self) -> list[Derived]:
        return [alive for one in self.derived if (alive := one()) is not None]

    def compute(self, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
        """Return what a function computes from the layer's input, with the parameters and the autocast of its call.

        Args:
            function: calls the layer, or computes with its parameters.
            hidden: (..., features), rows of the layer's input.

        Raises:
            RuntimeError: the layer would compute something else now.
        """

        def called(given: Tensor) -> Any:
            self._require_unchanged()
            if given.device.type == "meta":  # which has no autocast
                return function(given)
            # Without autocast's cache, whose casts belong to a block that is over.
            enabled = self._autocast is not None
            with torch.autocast(given.device.type, self._autocast, enabled, cache_enabled=False):
                return function(given)

        return self.within(called, hidden)

    def attach(self, tensor: Tensor) -> None:
        """Register the hooks on a tensor that was computed from the outputs."""
        if tensor.requires_grad:
            for hook in self.hooks:
                # Not with this object, which holds the outputs: they would hold themselves.
                tensor.register_hook(partial(_call_hook, hook, self.muted))

    def _require_unchanged(self) -> None:
        tensors = (self.hidden, *self.parameters)
        released = any(one.untyped_storage().nbytes() < one.nbytes for one in tensors if one.device.type != "meta")
        if released or [one.shape for one in tensors] != self._shapes:
            raise RuntimeError(
                "the loss of chunked logits must be computed in the model's forward, because FSDP or ZeRO-3 "
                "releases the weights after it: pass labels to the model, use fully_shard with "
                "reshard_after_forward=False, or pass loss='full' to compress_model"
            )
        now, before = self.watched(), self._watched
        same = len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))
        if not same or [tensor._version for tensor in (self.hidden, *now)] != self._versions:
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
        placed: how a DTensor has the values: ``"sharded"`` over the classes, or ``"replicated"``; empty for a plain
            tensor.
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
    placed: str = ""
    normalized: bool = False
    before: Derived | None = None
    step: Callable[[Tensor], Tensor] | None = None
    differentiable: bool = True
    hooks: list[Callable[[Tensor], Any]] = field(default_factory=list, init=False, repr=False)
    """Those of the source's hooks that get the gradient of these ``Logits`` in backward."""
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

    @property
    def is_gathered(self) -> bool:
        """Whether the ranks must gather the outputs, of whose classes each has some, to compute these values."""
        return self.source.shard is not None and self.placed != "sharded"

    def then(self, step: Callable[[Tensor], Tensor], **changes: Any) -> Derived:
        """The outputs after one more step."""
        changes = {"differentiable": self.differentiable and torch.is_grad_enabled(), **changes}
        return replace(self, before=self, step=step, **changes)

    def logits(self) -> Tensor:
        """Return the outputs after all steps, with their history. Each call returns the same tensor. If the last step
        makes a view, the tensor is a view of that of ``before``."""
        made = self.source.logits()  # which may call this
        if self._made is None:
            if self.before is not None and self.step is not None:
                with torch.set_grad_enabled(self.differentiable):
                    made = self.step(self.before.logits())
            self._made = made
            self.before = self.step = None  # whose values may be let go
        return self._made
