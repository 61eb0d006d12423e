"""Which module makes a call, read off the stack: of Python, or of dynamo where that is tracing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils import checkpoint as torch_checkpoint

from integrations._utils.torch_internals import (
    MODULE_CALL,
    attr_source,
    guard_builder,
    install_guard,
    instruction_translator,
)

if TYPE_CHECKING:
    from integrations.fewbit.calls import FewBitCalls


def callers(mode: FewBitCalls) -> Iterator[nn.Module]:
    """The modules whose forward the caller is inside of, from the innermost to the one for whose forward ``mode`` is
    on; none behind one that has a mode of its own."""
    for frame in _frames(sys._getframe(1)):
        if frame.f_code is MODULE_CALL:
            yield frame.f_locals["self"]
        elif _runs(mode, frame):
            if frame.f_locals["self"] is mode:
                yield mode.base
            return


def around_checkpoint(mode: FewBitCalls) -> nn.Module | None:
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


def reentrant_checkpoints(mode: FewBitCalls) -> Iterator[Any]:
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


def callers_when_traced() -> Iterator[nn.Module]:
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
