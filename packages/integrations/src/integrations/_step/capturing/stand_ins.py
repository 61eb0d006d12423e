"""Stand-ins for a model's tensors and inputs, and the state that a trial run must leave as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from integrations._common.random_states import random_states
from integrations._step.capturing.reach import Reach
from integrations._step.dispatch.memory import is_plain
from integrations._torch import tree_map_only


class StandIns:
    """Tensors that stand in for others. A tensor always gets the same stand-in, so that tied weights stay tied.

    Args:
        make: makes the stand-in of a tensor.
    """

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self._make = make
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # by the original's id; the original is held

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

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The stand-ins that are parameters."""
        return [made for _, made in self._made.values() if isinstance(made, nn.Parameter)]


@contextmanager
def stood_in(model: nn.Module, stand_ins: StandIns, given: Iterable[Any]) -> Iterator[None]:
    """A block in which stand-ins replace the tensors that the model's forward can get at. Afterwards gradients,
    generators and what ``Reach`` finds are as they were. ``given`` is what the forward is called with, beside tensors.
    The precision of a Q-layer learns nothing from forwards in the block."""
    reach, restore_random = Reach(model, given), random_states()
    parameters = [parameter for module in reach.modules for parameter in module.parameters(recurse=False)]
    gradients = [parameter.grad for parameter in parameters]

    def put_back() -> None:
        with ExitStack() as undo:
            undo.callback(restore_random)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                undo.callback(setattr, parameter, "grad", gradient)
            undo.callback(reach.restore)

    try:
        with ExitStack() as unwatched:
            for parameter in parameters:
                parameter.grad = None
            for module in reach.modules:
                for value in list(vars(module).values()):
                    # Asked of the class: a user's object may answer to any name.
                    if getattr(type(value), "unwatched", None) is not None:
                        unwatched.enter_context(value.unwatched())
            own = {
                id(tensor) for module in reach.modules for tensor in (*module.parameters(False), *module.buffers(False))
            }
            for tensor, put in reach.tensors():
                if id(tensor) in own or is_plain(tensor):
                    put(stand_ins.of(tensor))
            yield
    finally:
        try:
            put_back()
        except BaseException:  # an interrupt, say, which would leave stand-ins in the model
            put_back()
            raise
