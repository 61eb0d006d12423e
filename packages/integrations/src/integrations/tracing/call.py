"""``Call``: a call of a torch function, and the roles of the tensors that it saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from integrations.policies.arguments import ASSUMED, Arguments, variant
from integrations.policies.rules import operator_name
from integrations.tracing.tensors import get_memory, has_history, tensors_in


class Call:
    """One call of a torch function, while it runs. Most calls save nothing, so what only matters for a saved tensor is
    found out lazily.

    Attributes:
        function: the function that is called.
        arguments: the tensors among its arguments.
        recomputes: whether backward recomputes the call from the tensors that it saves.
        module: path of the module that makes the call, once it was asked for; ``None`` before.
    """

    __slots__ = ("_addresses", "_args", "_kwargs", "_operator", "arguments", "function", "module", "recomputes")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.function, self._args, self._kwargs = function, args, kwargs
        self.arguments = tensors_in(args)
        if kwargs:
            self.arguments += tensors_in(kwargs)
        self.recomputes = False
        self.module: str | None = None
        self._operator = ""
        self._addresses: list[int] | None = None

    @property
    def name(self) -> str:
        """The function's name, as in ``operator_name``."""
        return operator_name(self.function)

    @property
    def in_place(self) -> bool:
        """Whether the function's name says that it overwrites its input."""
        name = str(getattr(self.function, "__name__", "")).split(".")[0]
        return name.endswith("_") and not name.endswith("__")

    @property
    def given(self) -> Arguments:
        """All arguments of the function."""
        return Arguments(self._args, self._kwargs)

    @property
    def operator(self) -> str:
        """The function's name. If an argument makes the function's rule not hold, the argument's name follows."""
        if not self._operator:
            name = operator_name(self.function)
            self._operator = variant(name, self.given) if name in ASSUMED else name
        return self._operator

    def role(self, tensor: Tensor, storage: torch.UntypedStorage | None) -> str:
        """The tensor's role in this call: ``"input"``, ``"other"``, ``"result"`` or ``"internal"``; ``"recomputed"``
        for query, key and value of attention that backward recomputes."""
        if self.recomputes and tensor.dtype is not torch.bool and tensor is not self.given.get(3, "attn_mask"):
            return "recomputed"
        arguments = self.arguments
        if arguments and arguments[0] is tensor:
            return "input"
        addresses = self._addresses
        if addresses is None:
            addresses = self._addresses = [_address(get_memory(argument)) for argument in arguments]
        address = _address(storage)
        if address:
            if address in addresses:
                return "input" if addresses[0] == address else "other"
        elif any(argument is tensor for argument in arguments):
            return "other"
        return "result" if has_history(tensor) else "internal"


def _address(storage: torch.UntypedStorage | None) -> int:
    """A storage's address while something holds it; 0 for none."""
    return 0 if storage is None else int(storage._cdata)
