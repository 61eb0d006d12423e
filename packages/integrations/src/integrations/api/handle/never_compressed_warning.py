"""Warns when an optimizer trains a compressed model that has had no compressed forward.

Nothing else would tell: compression sees calls of the model itself in ``train()`` mode. A model trained in ``eval()``
mode, or through other methods, looks like one that is not trained until an optimizer steps its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from integrations._utils.running_module import NOTHING_TRAINS, trains
from integrations.report.words import IT_TAKES

if TYPE_CHECKING:
    from integrations.api.handle.handle_state import HandleState

SUBJECT = "unused"
"""The subject of the warning, which a handle gives once."""

_IN_EVAL = (
    "the model is in eval() mode: call model.train(), then eval() on modules that must stay in eval mode, such as "
    "batch norms"
)

_waiting: WeakSet[HandleState] = WeakSet()  # handles that wait for their first forward


def await_forward(handle: HandleState) -> None:
    """Watches what optimizers step until the handle compresses a forward."""
    _listen()
    _waiting.add(handle)


def awaits_forward(handle: HandleState) -> bool:
    """Whether the handle waits for its first forward."""
    return handle in _waiting


def await_no_longer(handle: HandleState) -> None:
    """Ends the watch: a forward is being compressed, or none is to be."""
    if _waiting:
        _waiting.discard(handle)


@cache
def _listen() -> None:
    # Never removed: torch must not lose a hook while it calls hooks, and this one costs nothing if no handle waits.
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if torch.compiler.is_compiling() or not _waiting:
        return
    # A closure was given, and its forward is still to come.
    if any(given is not None for given in (*args[1:], *kwargs.values())):
        return
    stepped = {
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not _keeps_still(group)
    }
    for handle in list(_waiting):
        model = handle._model.alive  # a shallow copy of a model that is gone has the model's handle
        if model is None or handle.off:
            continue
        if any(id(parameter) in stepped for parameter in model.parameters()):
            _tell(handle, type(optimizer).__name__)


def _keeps_still(group: Mapping[str, Any]) -> bool:
    """Return whether a step does not move a group's parameters: torch.distributed.checkpoint steps with a learning rate
    of 0 to make the states that it loads."""
    rate = group.get("lr")
    if isinstance(rate, Tensor) and rate.device.type != "cpu":
        return False  # looking at it would wait for the device
    return rate is not None and float(rate) == 0


def why_unused(model: nn.Module) -> str:
    """Return why no forward was compressed, and what to do, in words."""
    if not trains(model):
        return NOTHING_TRAINS
    return IT_TAKES if model.training else _IN_EVAL


def _tell(handle: HandleState, optimizer: str) -> None:
    message = (
        f"{handle.name}: {optimizer} updates its parameters, but none of its forwards was compressed: "
        f"{why_unused(handle.model)}"
    )
    if handle.strict:
        raise RuntimeError(f"{message}; without strict=True this is a warning, and level='L0' turns compression off")
    handle.warn_once(SUBJECT, message)
    await_no_longer(handle)
