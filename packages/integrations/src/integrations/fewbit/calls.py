"""``FewBitCalls``: calls of activation functions that a model's forward makes, in few bits.

A ``TorchFunctionMode`` that is on while the forward runs, and again while a checkpoint computes part of it again.
Dynamo traces it with the forward. It changes the calls of the model's own modules, and of no other: the stack tells
whose a call is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from integrations._utils.in_model import ModelRef
from integrations._utils.torch_internals import constant_when_traced, top_saved_tensors_default_hooks
from integrations.fewbit import functional
from integrations.fewbit.callers import around_checkpoint, callers, callers_when_traced, reentrant_checkpoints
from integrations.fewbit.conversion import Calls, find_calls
from integrations.fewbit.functional.conditions import keeps_few_bits
from integrations.fewbit.registry import CALLS
from integrations.tracing.checkpoint_frames import find_checkpoint


class FewBitCalls(TorchFunctionMode):
    """Exchanges torch's activation functions for those of ``fewbit.functional``. It has no state of its own: threads
    and nested forwards share it.

    Args:
        calls: what is exchanged, and where that is noted.
        base: the module that a call is counted for which is made in no module's forward.
        in_eval: see ``Calls.take``.
    """

    def __init__(self, calls: Calls, base: nn.Module, in_eval: frozenset[nn.Module] | None = None) -> None:
        super().__init__()
        self.calls, self.in_eval = calls, in_eval
        self._base = ModelRef(base)

    @property
    def base(self) -> nn.Module:
        """The module that a call is counted for which is made in no module's forward."""
        return self._base()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function's result, with its calls exchanged."""
        with self:
            return function(*args, **kwargs)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = CALLS.get(func)
        if torch.compiler.is_compiling():
            # To dynamo a checkpoint is a call, too: what it traces for that, inside of this, would be without the mode.
            args = tuple([self._entered(value) if callable(value) else value for value in args])
        else:
            self._follow_checkpoints(name is not None)
        if name is None or "out" in kwargs:
            return func(*args, **kwargs)
        given = args or (kwargs.get("input"),)
        if not keeps_few_bits(given[0]):
            return func(*args, **kwargs)
        options = {key: value for key, value in kwargs.items() if key != "input"}
        if name.endswith("_"):
            name = name[:-1]
            options["inplace"] = True
        kind = "gelu_tanh" if options.get("approximate") == "tanh" else name
        if not self._takes(kind):
            return func(*args, **kwargs)
        return getattr(functional, name)(*given, **options, **self._settings(name))

    def _settings(self, name: str) -> Mapping[str, Any]:
        if not torch.compiler.is_compiling():
            return self.calls.options[name]
        # Dynamo takes an int that is another one in another model for a variable, and a text never.
        texts = self.calls.texts[name].items()
        return {option: int(text) if option == "bits" else text for option, text in texts}

    def _entered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def body(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return body

    def _takes(self, kind: str) -> bool:
        if torch.compiler.is_compiling():
            taken: bool = _takes_when_traced(self.calls.key, kind)
            return taken
        return self.calls.take(kind, callers(self), self.in_eval)

    def _follow_checkpoints(self, activation: bool) -> None:
        """Has a checkpoint that this forward has entered compute its segment again under this mode: it would not save
        the same otherwise."""
        hooks = top_saved_tensors_default_hooks(False)
        if hooks is not None:
            checkpoint = find_checkpoint(hooks[0])
            if checkpoint is not None and not self._follows(checkpoint.recompute_fn):
                checkpoint.recompute_fn = self._again(checkpoint.recompute_fn)
        if activation and not torch.is_grad_enabled():
            for context in reentrant_checkpoints(self):
                if not self._follows(context.run_function):
                    context.run_function = self._again(context.run_function)

    def _follows(self, function: Any) -> bool:
        return self.calls in getattr(function, "few_bit_calls", ())

    def _again(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        # The model may be in another mode by then.
        in_eval = self.calls.in_eval() if self.in_eval is None else self.in_eval
        base = around_checkpoint(self) or self.base
        mode = FewBitCalls(self.calls, base, in_eval)

        def recompute(*args: Any, **kwargs: Any) -> Any:
            return mode.run(fn, args, kwargs)

        recompute.few_bit_calls = (*getattr(fn, "few_bit_calls", ()), self.calls)  # type: ignore[attr-defined]
        recompute.keeps = self.calls.model, base  # type: ignore[attr-defined]  # the user may let go of both
        return recompute


@constant_when_traced
def _takes_when_traced(key: str, kind: str) -> bool:
    """Dynamo calls this while it traces, as what it is: a constant of the compiled code."""
    calls = find_calls(key)
    return calls is not None and calls.take(kind, list(callers_when_traced()) or [calls.model])
