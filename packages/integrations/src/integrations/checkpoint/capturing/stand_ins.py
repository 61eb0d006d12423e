"""Stand-ins for a model's parameters, buffers and inputs, and what else a trial run must leave as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

_OWN = ("_parameters", "_buffers", "_modules")  # dictionaries that torch.func.functional_call sees to


class StandIns:
    """Tensors in the place of others: the same one for the same, so that tied weights stay tied.

    Args:
        make: makes the stand-in of a tensor.
    """

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self._make = make
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # by the original's id, with the original

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor's stand-in, a leaf that requires a gradient if the tensor does."""
        if id(tensor) not in self._made:
            with torch.no_grad():
                made = self._make(tensor)
            made = made.detach()
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, tensor.requires_grad)
            elif tensor.requires_grad:
                made.requires_grad_()
            self._made[id(tensor)] = tensor, made
        return self._made[id(tensor)][1]

    def of_all(self, values: Any) -> Any:
        """Nested values, with stand-ins for the tensors in them."""
        return tree_map_only(Tensor, self.of, values)

    def of_model(self, model: nn.Module) -> dict[str, Tensor]:
        """For all parameters and buffers, by name."""
        named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        return {name: self.of(tensor) for name, tensor in named}


@contextmanager
def untouched(model: nn.Module, devices: list[torch.device]) -> Iterator[None]:
    """A block after which generators, the model's gradients and its modules' attributes are as they were; what an
    attribute learns from forwards, as a Q-layer's precision, it does not learn from those in the block."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    attributes = [(module, dict(module.__dict__)) for module in model.modules()]
    indices = [device.index or 0 for device in devices if device.type == "cuda"]
    numpy, states = sys.modules.get("numpy"), (random.getstate(), None)
    if numpy is not None:
        states = states[0], numpy.random.get_state()
    try:
        with torch.random.fork_rng(indices, device_type="cuda"), ExitStack() as unwatched:
            for _, values in attributes:
                for value in values.values():
                    if hasattr(value, "unwatched"):
                        unwatched.enter_context(value.unwatched())
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    finally:
        random.setstate(states[0])
        if numpy is not None:
            numpy.random.set_state(states[1])
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, before in attributes:
            for name in set(module.__dict__) - set(before):
                del module.__dict__[name]
            module.__dict__.update(before)
