"""Stand-ins for a model's tensors and inputs, and the state that a trial run must leave as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from integrations._utils.random_states import random_states
from integrations._utils.torch_internals import tree_map_only
from integrations._utils.unwatched import unwatched_blocks
from integrations.capture.dispatch.memory import get_key, is_plain, iter_parts
from integrations.capture.reachable_state import ReachableState
from integrations.capture.state_snapshot import replaced
from integrations.tracing.tensors import get_gradient

Result = TypeVar("Result")


class StandIns:
    """Tensors that stand in for others. A tensor always gets the same stand-in, so that tied weights stay tied.

    Args:
        make: makes the stand-in of a tensor.

    Attributes:
        storages: the keys of their memory; of those that wrap others, such as DTensors, the keys of these.
    """

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self._make = make
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # by the original's id; the original is held
        self.storages: set[int] = set()

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
            self.storages.update(map(get_key, iter_parts(made)))
        return self._made[id(tensor)][1]

    def of_all(self, values: Any) -> Any:
        """Nested values, with stand-ins for the tensors in them."""
        return tree_map_only(Tensor, self.of, values)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The stand-ins that are parameters."""
        return [made for _, made in self._made.values() if isinstance(made, nn.Parameter)]


def with_stand_ins(model: nn.Module, stand_ins: StandIns, reach: ReachableState, work: Callable[[], Result]) -> Result:
    """What ``work`` returns, called while stand-ins replace the tensors that the model's forward can get at.

    Afterwards gradients, generators and what ``ReachableState`` finds are as they were. The precision of a Q-layer
    learns nothing from forwards meanwhile.

    Args:
        model: whose forward is tried.
        stand_ins: make the stand-ins.
        reach: what the forward can get at. Nothing but such trials has run since it was found.
        work: the trial.
    """
    own = [parameter for module in reach.modules for parameter in module.parameters(recurse=False)]
    undo: list[Callable[[], object]] = [random_states()]
    undo += [partial(setattr, parameter, "grad", get_gradient(parameter)) for parameter in own]
    undo.append(reach.restore)
    try:
        if torch.is_anomaly_enabled():  # anomaly mode reads elements, which fake tensors do not have
            undo.append(partial(torch.autograd.set_detect_anomaly, True, torch.is_anomaly_check_nan_enabled()))
            torch.autograd.set_detect_anomaly(False)
        for parameter in own:
            parameter.grad = None
        for module in reach.modules:
            undo += map(_entered, unwatched_blocks(module))
        _put(stand_ins, reach)
        return work()
    finally:
        # An interrupt, or what the handler of another signal raises, comes anywhere, and once: the second call undoes
        # what the first one did not. Otherwise the model would go on with stand-ins for weights.
        try:
            _call_all(undo)
        except BaseException:
            _call_all(undo)
            raise


def _put(stand_ins: StandIns, reach: ReachableState) -> None:
    """Puts stand-ins in the place of the tensors that were found."""
    own = {id(tensor) for module in reach.modules for tensor in (*module.parameters(False), *module.buffers(False))}

    def stand_in(tensor: Tensor) -> Tensor:
        return stand_ins.of(tensor) if id(tensor) in own or is_plain(tensor) else tensor

    for found, put in reach.tensors():
        put(replaced(found, stand_in))


def _entered(block: AbstractContextManager[object]) -> Callable[[], object]:
    """Enters a block. Returns what leaves it, and does nothing once it was left."""
    block.__enter__()
    return partial(block.__exit__, None, None, None)


def _call_all(undo: list[Callable[[], object]]) -> None:
    """Calls all, the last one first, even if some raise."""
    with ExitStack() as stack:
        for one in undo:
            stack.callback(one)
