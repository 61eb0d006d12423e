"""``FusedFunction``: the ``autograd.Function`` of an operator, cheap to call."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

from torch.autograd import Function

_BY_PLACE = Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])


class FusedFunction(Function):
    """A Function that is called with all arguments of its ``forward``, each by its place.

    torch binds the arguments of each call to the signature of ``forward``, for the defaults that it may have, and works
    that signature out anew: for a small tensor this takes longer than the kernels. This one takes no time to bind to.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.forward.__signature__ = _BY_PLACE  # type: ignore[attr-defined]
