"""``at_backward``: call a function once when the backward of a forward's result begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from integrations.tracing.tensors import find_backward_node, tensors_in


def at_backward(result: Any, call: Callable[[], None]) -> None:
    """Call a function once when backward reaches the first of the tensors in a forward's result.

    Args:
        result: what the forward returned.
        call: the function. Nodes of autograd hold it, so it must not keep the model alive. It runs in the thread in
            which backward runs.
    """
    hook = _Once(call)
    for node in {find_backward_node(tensor) for tensor in tensors_in(result)}:
        if node is not None:
            node.register_prehook(hook)


class _Once:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self, gradients: Any) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
