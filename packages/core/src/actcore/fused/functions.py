"""``FusedFunction``: the ``autograd.Function`` of an operator, cheap to call."""

from __future__ import annotations

from inspect import BoundArguments, Parameter, Signature, signature
from typing import Any

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
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.forward.__signature__ = _ByPlace(list(signature(cls.forward).parameters.values()))  # type: ignore[attr-defined]
