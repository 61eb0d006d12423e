"""Says so when an optimizer trains a compressed model of which no forward has been compressed.

Nothing else tells: compression sees calls of the model itself in ``train()`` mode. In ``eval()``, or entered through
its other methods, a model that is trained looks like one that is not, until an optimizer steps its parameters.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from integrations.report.words import IT_TAKES

if TYPE_CHECKING:
    from integrations.handle.handle_state import HandleState

SUBJECT = "unused"
"""Of such warnings, of which a handle gives one."""

_IN_EVAL = "the model is in eval() mode: call model.train(), and eval() of what is to stay so, such as its batch norms"

_waiting: WeakSet[HandleState] = WeakSet()  # for their first forward


def await_forward(handle: HandleState) -> None:
    """Looks at what optimizers step, until the handle compresses a forward."""
    _listen()
    _waiting.add(handle)


def awaits_forward(handle: HandleState) -> bool:
    """Whether it does so."""
    return handle in _waiting


def await_no_longer(handle: HandleState) -> None:
    """A forward is being compressed, or none is to be."""
    _waiting.discard(handle)


@cache
def _listen() -> None:
    # For good: torch's hooks must not be taken off while it calls them, and this one costs nothing where none waits.
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if torch.compiler.is_compiling() or not _waiting:
        return
    if any(given is not None for given in (*args[1:], *kwargs.values())):  # a closure: its forward is still to come
        return
    stepped = {
        id(parameter) for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    }
    for handle in list(_waiting):
        model = handle._model.alive  # a shallow copy of one that is gone has its handle
        if model is None or handle.off:
            continue
        if any(id(parameter) in stepped for parameter in model.parameters()):
            _tell(handle, type(optimizer).__name__)


def why_unused(model: nn.Module) -> str:
    """Why no forward was compressed, and what to do."""
    return IT_TAKES if model.training else _IN_EVAL


def _tell(handle: HandleState, optimizer: str) -> None:
    message = (
        f"{handle.name}: {optimizer} steps its parameters, and none of its forwards was compressed: "
        f"{why_unused(handle.model)}"
    )
    if handle.strict:
        raise RuntimeError(f"{message}; without strict=True this is a warning, and level L0 is off")
    handle.warn_once(SUBJECT, message)
    await_no_longer(handle)
