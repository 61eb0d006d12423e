"""``FusedFunction``: the ``autograd.Function`` of an operator, cheap to call."""

from __future__ import annotations

from inspect import BoundArguments, Parameter, Signature, signature
from typing import Any, ClassVar

import torch
from torch.autograd import Function

_BY_PLACE = Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])


class _ByPlace(Signature):
    """Binds without a look at its parameters, which are there to be counted: torch.compile up to torch 2.11 does."""

    def bind(self, *arguments: Any, **_: Any) -> BoundArguments:
        return _BY_PLACE.bind(*arguments)


class FusedFunction(Function):
    """A Function that is called with all arguments of its ``forward``, each by its place.

    torch binds the arguments of each call to the signature of ``forward``, for the defaults that it may have, and works
    that signature out anew: for a small tensor this takes longer than the kernels. This one takes no time to bind to.
    Only a Function that has a ``setup_context`` is bound at all, and only torch.func and torch.compile need one: where
    neither is there, ``call`` takes a form of the Function that does both in one ``forward``.
    """

    _joined: ClassVar[type[Function]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_joined" in cls.__dict__:
            return
        cls.forward.__signature__ = _ByPlace(list(signature(cls.forward).parameters.values()))  # type: ignore[attr-defined]
        forward, setup_context = cls.forward, cls.setup_context

        def joined(ctx: Any, *arguments: Any) -> Any:
            output = forward(*arguments)
            setup_context(ctx, arguments, output)
            return output

        members = {"forward": staticmethod(joined), "setup_context": staticmethod(Function.setup_context)}
        cls._joined = type(cls.__name__, (cls,), {**members, "_joined": None, "__module__": cls.__module__})

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        """``apply``, in half of its time."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return cls.apply(*arguments)
        return cls._joined.apply(*arguments)
