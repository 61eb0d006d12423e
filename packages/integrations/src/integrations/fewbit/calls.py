"""``FewBitCalls``: calls of activation functions that a model's forward makes, in few bits.

A ``TorchFunctionMode`` that is on while the forward runs, and again while a checkpoint computes part of it again.
Dynamo traces it with the forward. It changes the calls of the model's own modules, and of no other: the stack tells
whose a call is: Python's, or dynamo's where that is tracing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as torch_checkpoint

from integrations._utils.in_model import ModelRef
from integrations._utils.torch_internals import (
    MODULE_CALL,
    attr_source,
    constant_when_traced,
    guard_builder,
    install_guard,
    instruction_translator,
    top_saved_tensors_default_hooks,
)
from integrations.fewbit import functional
from integrations.fewbit.conversion import Calls, find_calls
from integrations.fewbit.functional.conditions import keeps_few_bits
from integrations.fewbit.registry import CALLS
from integrations.tracing.checkpoints import find_checkpoint


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
        few_bit = getattr(functional, name)
        if self.calls.exact:
            if self._settings(name).get("rounding") == "stochastic":  # which draws random numbers
                few_bit(given[0].clone(), *given[1:], **options, **self._settings(name))
            return func(*args, **kwargs)
        return few_bit(*given, **options, **self._settings(name))

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
        return self.calls.take(kind, _callers(self), self.in_eval)

    def _follow_checkpoints(self, activation: bool) -> None:
        """Has a checkpoint that this forward has entered compute its segment again under this mode: it would not save
        the same otherwise."""
        hooks = top_saved_tensors_default_hooks(False)
        if hooks is not None:
            checkpoint = find_checkpoint(hooks[0])
            if checkpoint is not None and not self._follows(checkpoint.recompute_fn):
                checkpoint.recompute_fn = self._again(checkpoint.recompute_fn)
        if activation and not torch.is_grad_enabled():
            for context in _reentrant_checkpoints(self):
                if not self._follows(context.run_function):
                    context.run_function = self._again(context.run_function)

    def _follows(self, function: Any) -> bool:
        return self.calls in getattr(function, "few_bit_calls", ())

    def _again(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        # The model may be in another mode by then.
        in_eval = self.calls.in_eval() if self.in_eval is None else self.in_eval
        base = _around_checkpoint(self) or self.base
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
    return calls is not None and calls.take(kind, list(_callers_when_traced()) or [calls.model])


def _callers(mode: FewBitCalls) -> Iterator[nn.Module]:
    """The modules whose forward the caller is inside of, from the innermost to the one for whose forward ``mode`` is
    on; none behind one that has a mode of its own."""
    for frame in _frames(sys._getframe(1)):
        if frame.f_code is MODULE_CALL:
            yield frame.f_locals["self"]
        elif _runs(mode, frame):
            if frame.f_locals["self"] is mode:
                yield mode.base
            return


def _around_checkpoint(mode: FewBitCalls) -> nn.Module | None:
    """The module that called the innermost ``torch.utils.checkpoint`` that the caller is inside of."""
    inside = False
    for frame in _frames(sys._getframe(1)):
        if frame.f_globals.get("__name__") == torch_checkpoint.__name__:
            inside = True
        elif inside and frame.f_code is MODULE_CALL:
            module: nn.Module = frame.f_locals["self"]
            return module
        elif _runs(mode, frame):
            return None
    return None


def _reentrant_checkpoints(mode: FewBitCalls) -> Iterator[Any]:
    """The contexts of the checkpoints with ``use_reentrant=True`` that the caller is inside of, innermost first."""
    forward = torch_checkpoint.CheckpointFunction.forward.__code__
    for frame in _frames(sys._getframe(1)):
        if frame.f_code is forward:
            yield frame.f_locals["ctx"]
        elif _runs(mode, frame):
            return


def _runs(mode: FewBitCalls, frame: FrameType) -> bool:
    """Whether the frame is one that turns on this mode, or another of its kind."""
    return frame.f_code is type(mode).run.__code__


def _callers_when_traced() -> Iterator[nn.Module]:
    """The modules one of whose methods dynamo is tracing, innermost first; none where it cannot tell.

    The code that is compiled is for the mode, training or ``eval()``, that those are in which are looked at.
    """
    try:
        tracing: Any = instruction_translator().current_tx().output.current_tx
        while tracing is not None:
            module = _get_self(tracing)
            if module is not None:
                yield module
            tracing = getattr(tracing, "parent", None)
    except (ImportError, AttributeError):  # none of this is public
        return


def _get_self(tracing: Any) -> nn.Module | None:
    """The module that is the first argument of the function which dynamo is tracing."""
    code: CodeType = tracing.f_code
    if not code.co_argcount:
        return None
    variable = tracing.symbolic_locals.get(code.co_varnames[0])
    if hasattr(variable, "is_realized"):
        if not variable.is_realized():
            return None
        variable = variable.realize()
    key = getattr(variable, "module_key", None)
    value = getattr(variable, "value", None) if key is None else tracing.output.get_submodule(key)
    if not isinstance(value, nn.Module):
        return None
    if variable.source is not None:
        # As if the forward read it: dynamo compiles anew when it changes.
        training = attr_source()(variable.source, "training")
        install_guard()(training.make_guard(guard_builder().CONSTANT_MATCH))
    return value


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
