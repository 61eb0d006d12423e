"""``Logits``: a linear layer's outputs that are not computed until somebody needs them.

A language model makes logits, may cut, reshape, cast, scale and squash them, and has their cross-entropy computed. This
tensor notes what was done to it, and has the cross-entropy computed from the layer's input. Whatever else is asked of
it is asked of the logits themselves, which are then made with their history: correct, and as large as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodWrapperType
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import enable_reentrant_dispatch

from integrations._utils.compiling import compiles_callees, not_inlined, without_dynamo
from integrations._utils.torch_internals import DisableTorchFunctionSubclass, make_wrapper_subclass, tree_map_only
from integrations._utils.warn import warn
from integrations.capture.graphs.sharding import called_by_engine, is_of_engine
from integrations.losses import _rules as rules
from integrations.losses._derived import Derived
from integrations.losses._differentiated import NO_SECOND_DERIVATIVE
from integrations.losses._losses_of_logits import expected_loss


class Logits(Tensor):
    """Outputs of a linear layer, (..., classes), which are computed once more than their cross-entropy is wanted."""

    derived: Derived

    @staticmethod
    def __new__(cls, derived: Derived) -> Self:
        kind = PlacedLogits if derived.placed else cls
        made: Self = make_wrapper_subclass(kind, derived.shape, dtype=derived.dtype, device=derived.hidden.device)
        made.derived = derived
        return made

    @staticmethod
    def of(derived: Derived) -> Logits:
        """The logits with a history, so that code that does not know this class differentiates them, too."""
        source = derived.source
        with torch.set_grad_enabled(derived.differentiable and torch.is_grad_enabled()):
            logits: Logits = _Made.apply(derived, source.hidden, *source.wanting)
        source.attach(logits)
        derived.hooks[:] = source.hooks
        return logits

    @property
    def differentiated_input(self) -> Tensor:
        """The layer's input: every backward goes through it, also that of a loss which leaves the logits out."""
        return self.derived.source.hidden

    @property
    def waits(self) -> bool:
        """Whether nobody needed the elements yet, so that there is no memory of them."""
        return not self.derived.source.made

    @property
    def answered(self) -> bool:
        """Whether a loss was computed without these logits, and nobody needed them yet."""
        return self.waits and self.derived.source.answered

    def whole(self, function: object) -> Tensor:
        """The logits themselves, with their history.

        Args:
            function: the function that needs them.

        Raises:
            ValueError: as for ``Source.note_whole``.
        """
        asked = getattr(function, "__self__", None) if isinstance(function, MethodWrapperType) else function
        self.derived.source.note_whole(getattr(asked, "__name__", str(asked)))
        return self.derived.logits()

    def expected_loss(self) -> Tensor:
        """Return a loss in chunks, a scalar, in place of the one that a training loop will compute of these logits."""
        return expected_loss(self.derived)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Logits(shape={tuple(self.shape)}, dtype={self.dtype}, not computed yet)"

    @classmethod
    @not_inlined
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = without_dynamo(_answer) if compiles_callees() else _answer
        return answer(function, args, dict(kwargs or {}))

    def _listen(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Registers for the gradients of these logits, to which a loss that is computed without them gives none."""
        hook, source = _hook(args, kwargs), self.derived.source
        # fully_shard and DeepSpeed register hooks on all outputs of a model, and of its parts. A loss that is there
        # already is such an output, too.
        if is_of_engine(hook):
            if not source.answered:
                source.hooks.append(hook)
                self.derived.hooks.append(hook)
        else:
            warn(
                f"{function.__name__}() of chunked logits comes after their loss, which gives them no gradient: call "
                "it before the loss is computed, or pass loss='full' to compress_model"
            )
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub has no class there
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """An operator that C++ or a ``Function`` calls on these logits, below autograd."""

        def values(logits: Logits) -> Tensor:
            # Otherwise nothing that is computed here would have a history, and others may differentiate the logits.
            with enable_reentrant_dispatch():
                return logits.whole(function).detach()

        args, kwargs = tree_map_only(Logits, values, (args, dict(kwargs or {})))
        return function(*args, **kwargs)


class PlacedLogits(Logits):
    """Logits in place of a ``DTensor``, with as much of it as ``parallelize_module`` asks of a layer's output."""

    @property
    def device_mesh(self) -> Any:
        """The ``DeviceMesh`` of the layer's weight."""
        return self.derived.source.shard.mesh  # type: ignore[union-attr]

    @property
    def placements(self) -> tuple[Any, ...]:
        """How the logits are placed on it."""
        return rules.placements(self.derived)

    def redistribute(self, device_mesh: Any = None, placements: Any = None, **options: Any) -> Tensor:
        """The logits, placed in another way."""
        casts = any(value for name, value in options.items() if name != "async_op")
        plain = self.waits and not casts and device_mesh in (None, self.device_mesh)
        found = rules.redistributed(self.derived, placements) if plain else NotImplemented
        if found is NotImplemented:
            made: Any = self.whole("redistribute")
            result: Tensor = made.redistribute(device_mesh, placements, **options)
            return result
        return self if found is self.derived else Logits.of(found)

    def to_local(self, *, grad_placements: Any = None) -> Tensor:
        """The logits of this rank."""
        found = rules.local(self.derived, grad_placements) if self.waits else NotImplemented
        if found is NotImplemented:
            made: Any = self.whole("to_local")
            result: Tensor = made.to_local(grad_placements=grad_placements)
            return result
        return Logits.of(found)

    def full_tensor(self, *, grad_placements: Any = None) -> Tensor:
        """The logits of all ranks."""
        from torch.distributed.tensor import Replicate

        found: Any = self.redistribute(placements=[Replicate()])
        result: Tensor = found.to_local(grad_placements=grad_placements)
        return result


class _Made(Function):
    """The history of logits, for backward through code that does not use torch's functions."""

    @staticmethod
    def forward(ctx: Any, derived: Derived, hidden: Tensor, *parameters: Tensor) -> Logits:
        ctx.derived = derived
        return Logits(derived)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError(NO_SECOND_DERIVATIVE)
        source = ctx.derived.source
        if not source.made:
            source.note_whole("backward")
        given = source.hidden, *source.wanting
        wanted = [tensor for tensor in given if tensor.requires_grad]
        # Of the very logits that were read: a layer with dropout would make other ones. Their hooks have been called
        # with the gradient of these ``Logits``.
        logits = ctx.derived.logits()
        source.muted.extend(ctx.derived.hooks)
        try:
            found = iter(torch.autograd.grad(logits, wanted, gradient, retain_graph=True, allow_unused=True))
        finally:
            source.muted.clear()
        return None, *(next(found) if tensor.requires_grad else None for tensor in given)


def _answer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns for logits."""
    with DisableTorchFunctionSubclass():
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, Logits) and not first.derived.source.made:
            answered = first.derived.source.answered
            if function in rules.LISTENING and (answered or is_of_engine(_hook(args, kwargs))):
                return first._listen(function, args, kwargs)
            if function is Tensor.detach and called_by_engine():
                return Logits.of(first.derived)
            if function is Tensor.detach_:  # as a pipeline does after the backward of its last stage
                function(*args, **kwargs)
                first.derived = first.derived.then(Tensor.detach, differentiable=False)
                return first
            done = rules.apply_rule(function, first.derived, args, kwargs)
            if isinstance(done, Derived):
                return first if done is first.derived else Logits.of(done)
            if isinstance(done, tuple):
                return tuple(map(Logits.of, done))
            if done is not NotImplemented:
                first.derived.source.attach(done)
                return done
        # A hook, and the gradient that it got, belong to the tensor on which it was registered.
        listened = isinstance(first, Logits) and first.derived.made and function in rules.OF_GRADIENT
        if function in rules.METADATA and not listened:
            return function(*args, **kwargs)
        return _of_whole(function, args, kwargs)


def _hook(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The hook that a call registers."""
    return args[1] if len(args) > 1 else kwargs.get("hook")


def _of_whole(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns for the logits themselves."""
    of: dict[int, Logits] = {}

    def whole(logits: Logits) -> Tensor:
        made = logits.whole(function)
        of[id(made)] = logits
        return made

    whole_args, whole_kwargs = tree_map_only(Logits, whole, (args, kwargs))
    result = function(*whole_args, **whole_kwargs)
    return of.get(id(result), result)  # a function that writes to its argument returns it
