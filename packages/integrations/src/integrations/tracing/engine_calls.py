"""``find_engine_call``: the operator in whose place a training engine has an autograd function of its own.

Autograd functions are no torch functions, so that a tracker does not see them. DeepSpeed's ZeRO-3 computes all linear
layers by one, since it gives their weights back after the forward.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import torch

from integrations.tracing.call import Call

_MODULE = "deepspeed.runtime.zero.linear"
_CALLER = "zero3_linear_wrap"  # in the place of torch.nn.functional.linear, with its arguments
_MOST_FRAMES = 16
"""Frames between the pack hook and the caller: those of the hook, and of torch."""


def find_engine_call() -> Call | None:
    """The call of an operator in which autograd saves a tensor, for the pack hook where the tracker has seen none."""
    code = _get_code()
    if code is None:
        return None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if frame.f_code is code:
            given, names = frame.f_locals, code.co_varnames[: code.co_argcount]
            if not all(name in given for name in names):
                return None
            return Call(torch.ops.aten.linear.default, tuple(given[name] for name in names), {})
        frame = frame.f_back
    return None


def _get_code() -> CodeType | None:
    """The code of DeepSpeed's linear layer; ``None`` where nobody has imported it."""
    caller = getattr(sys.modules.get(_MODULE), _CALLER, None)
    code: CodeType | None = getattr(caller, "__code__", None)
    return code
