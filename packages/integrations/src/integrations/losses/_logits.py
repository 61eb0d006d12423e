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
from integrations.capture.graphs.sharding import is_of_engine
from integrations.losses import _deriving as deriving
from integrations.losses._derived import Derived
from integrations.losses._differentiated import NO_SECOND_DERIVATIVE
from integrations.losses._losses_of_logits import expected_loss


class Logits(Tensor):
    """Outputs of a linear layer, (..., classes), which are computed once more than their cross-entropy is wanted."""

    derived: Derived

    @staticmethod
    def __new__(cls, derived: Derived) -> Self:
        made: Self = make_wrapper_subclass(cls, derived.shape, dtype=derived.dtype, device=derived.hidden.device)
        made.derived = derived
        return made

    @staticmethod
    def of(derived: Derived) -> Logits:
        """The logits with a history, so that code that does not know this class differentiates them, too."""
        source = derived.source
        with torch.set_grad_enabled(derived.differentiable and torch.is_grad_enabled()):
            logits: Logits = _Made.apply(derived, source.hidden, *source.wanting)
        return logits

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
            ValueError: the plan that is followed does not count them.
        """
        asked = getattr(function, "__self__", None) if isinstance(function, MethodWrapperType) else function
        source = self.derived.source
        source.made_whole(getattr(asked, "__name__", str(asked)), source.answered)
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
        """Registers for the gradients of these logits. The loss that was computed without them gives none."""
        # fully_shard and DeepSpeed register hooks on all outputs of a model; that of the loss is enough for them.
        if not is_of_engine(args[1] if len(args) > 1 else None):
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
            source.made_whole("backward", source.answered)
        given = source.hidden, *source.wanting
        wanted = [tensor for tensor in given if tensor.requires_grad]
        # Of the very logits that were read: a layer with dropout would make other ones.
        found = iter(torch.autograd.grad(ctx.derived.logits(), wanted, gradient, retain_graph=True, allow_unused=True))
        return None, *(next(found) if tensor.requires_grad else None for tensor in given)


def _answer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns for logits."""
    with DisableTorchFunctionSubclass():
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, Logits) and not first.derived.source.made:
            if function in deriving.LISTENING and first.derived.source.answered:
                return first._listen(function, args, kwargs)
            done = deriving.derived(function, first.derived, args, kwargs)
            if isinstance(done, Derived):
                return first if done is first.derived else Logits.of(done)
            if isinstance(done, tuple):
                return tuple(map(Logits.of, done))
            if done is not NotImplemented:
                return done
        # A hook, and the gradient that it got, belong to the tensor on which it was registered.
        listened = isinstance(first, Logits) and first.derived.made and function in deriving.OF_GRADIENT
        if function in deriving.METADATA and not listened:
            return function(*args, **kwargs)
        return _of_whole(function, args, kwargs)


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
