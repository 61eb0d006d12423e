"""The operator in which the peak of a step is reached."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.runner.process_memory import Counters

_NOTICED = 0.01
"""Part of the peak by which it must rise for an operator to be named: a page more says nothing."""


def peak_operator(loss: Callable[[], Tensor], count: Counters) -> str:
    """In which operator of a step the peak is reached, such as ``"backward: aten.convolution_backward, 8x64x56x56"``.
    Every ``.grad`` must be there, from a step before."""
    gc.collect()
    watch = _Watch(count)
    with watch:
        found = loss()
        watch.phase = "backward"
        found.backward()
    return watch.where


class _Watch(TorchDispatchMode):
    """Reads the peak after each operator."""

    def __init__(self, count: Counters) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.where = "forward", ""
        self._count = count
        self._before, self._most = count.start_peak(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        above = self._count.peak() - self._before
        if above > (1 + _NOTICED) * self._most:
            tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)]
            shape = max((tuple(tensor.shape) for tensor in tensors), key=math.prod, default=())
            self._most = above
            self.where = f"{self.phase}: {func.name().partition('.')[0]}, {'x'.join(map(str, shape))}"
        return result
