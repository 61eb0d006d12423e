"""What ``torch.compile`` has to know of a function, said without importing ``torch._dynamo``, which takes a second.

Torch's own decorators, ``torch.compiler.assume_constant_result`` and ``torch.compiler.disable``, import it whether or
not anything is compiled later. The functions here leave marks of the same effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_when_traced(function: Function) -> Function:
    """A decorator: while ``torch.compile`` traces, it calls the function and takes the result for a constant.

    The mark is the one that ``torch.compiler.assume_constant_result`` sets.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def uncompiled(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Shield a pack or unpack hook from ``torch.compile``, which would trace the hook when a submodule is compiled.

    The shield works even if ``torch.compile`` is first used after this call. Without ``torch.compile`` it costs one
    call of a Python function.
    """

    def shielded(value: Any) -> Any:
        return hook(value)

    shielded._torchdynamo_disable = True  # type: ignore[attr-defined]  # breaks the graph of a function that calls it
    return shielded if _skip_with_callees(shielded) else torch.compiler.disable(hook)


def _skip_with_callees(function: Callable[..., Any]) -> bool:
    """Has dynamo skip the frames of a function and of all that it calls. ``False`` where torch cannot."""
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):  # the names are private
        return False
    return True
