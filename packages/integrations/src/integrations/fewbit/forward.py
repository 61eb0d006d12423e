"""``FewBitForward``: what stands in the place of a converted model's ``forward``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from integrations._utils.torch_internals import get_tracing_state
from integrations.fewbit.calls import FewBitCalls
from integrations.fewbit.conversion import Calls
from integrations.runtime.first_forward import ListensOnce


class FewBitForward(ListensOnce):
    """Stands in a model's ``forward``: the original, with its calls of activation functions in few bits while the model
    is in training. Dynamo traces it: a compiled model is one graph."""

    what = "converted"
    undo = "fewbit.restore_model(model)"

    def __init__(self, model: nn.Module, forward: Callable[..., Any], replaced: bool, calls: Calls) -> None:
        super().__init__(model, forward, replaced)
        self.closed = False
        self._mode = FewBitCalls(calls, model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if self._is_on(self.model):
                return self._mode.run(self.forward, args, kwargs)
            return self.forward(*args, **kwargs)
        copy = self.shallow_copy(sys._getframe())
        if copy is not None:
            forward = functools.partial(type(copy).forward, copy)
            return self._with(FewBitCalls(self._mode.calls.for_copy(copy), copy), copy, forward, args, kwargs)
        model = self.model
        run = functools.partial(self._with, self._mode, model, self.forward, args, kwargs)
        return self._told(model, run, (args, kwargs))

    def _with(
        self,
        mode: FewBitCalls,
        model: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if not self._is_on(model) or get_tracing_state() is not None:
            return forward(*args, **kwargs)
        return mode.run(forward, args, kwargs)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Another function of the model, its calls in few bits as those of the forward are."""
        return self._mode.run(function, args, kwargs) if self._is_on(self.model) else function(*args, **kwargs)

    def _is_on(self, model: nn.Module) -> bool:
        return model.training and torch.is_grad_enabled() and not self.closed
