"""Training state that a trial run of the training loop's closure must leave as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from integrations._utils.random_states import random_states
from integrations._utils.storages import StorageSet
from integrations._utils.torch_internals import RESET_HOOKS, DisableTorchFunction
from integrations.planner.sensitivity.surroundings import Met, surroundings
from integrations.tracing.tensors import get_memory, tensors_in


class ParametersChanged(RuntimeError):
    """The closure changed a parameter. It must run forward and backward, and leave the step to the training loop."""

    def __init__(self, how: str) -> None:
        super().__init__(
            f"closure must run the forward and the backward and leave the parameters alone, but {how}; move "
            "optimizer.step() out of the closure, into the training loop after this call"
        )


@contextmanager
def trial(model: nn.Module) -> Iterator[Met]:
    """A block that leaves no trace: however it ends, gradients, buffers and the states of the random generators are put
    back, those of the model and of everything else that takes part in the block's forwards and backwards, as well as
    the steps of other compressed models.

    The model's ``.grad`` is ``None`` when the block begins.

    Raises:
        ParametersChanged: an optimizer was about to step, or a parameter about to be changed in place, which is
            prevented; or a parameter was changed unseen.
    """
    parameters = dict(model.named_parameters())
    versions = {name: parameter._version for name, parameter in parameters.items()}
    restore_random = random_states()
    stepping = register_optimizer_step_pre_hook(_refuse_step)

    def put_back() -> None:
        stepping.remove()
        restore_random()

    try:
        with surroundings(model) as met, _Guard(parameters, met):
            yield met
    finally:
        try:
            put_back()
        except BaseException:  # an interrupt, say
            put_back()
            raise
    changed = [name for name, parameter in parameters.items() if parameter._version != versions[name]]
    if changed:
        raise ParametersChanged(
            f"{changed[0]} was changed in a way that could not be prevented, and keeps its new value"
        )


def _refuse_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    raise ParametersChanged(f"{type(optimizer).__name__}.step() was called in the closure")


class _Guard(TorchFunctionMode):
    """Stops calls that write to a parameter before they do, and has each call's tensors and modules met."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], met: Met) -> None:
        super().__init__()
        self._met = met
        self._storages = StorageSet()
        for parameter in parameters.values():
            if (storage := get_memory(parameter)) is not None:
                self._storages.add(storage)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling() and func != RESET_HOOKS:
            name = str(getattr(func, "__name__", ""))
            written = [*(args[:1] if _writes(name) else ()), kwargs.get("out")]
            for tensor in tensors_in(written):
                storage = get_memory(tensor)
                if storage is not None and storage in self._storages:
                    raise ParametersChanged(f"{name} was about to write to a parameter in the closure")
            self._note(name, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        with DisableTorchFunction():
            given = list(tensors_in((args, kwargs)))
            self._met.leaves(given)
            self._met.running_modules()
            if name == "backward":
                self._met.graph(given)


def _writes(name: str) -> bool:
    """Whether a function of this name changes its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    if name.startswith("__") and name.endswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in _NOT_IN_PLACE)
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_", "share_memory_", "rename_")


_NOT_IN_PLACE = ("__invert__", "__index__", "__int__", "__iter__", "__init__", "__init_subclass__", "__instancecheck__")
