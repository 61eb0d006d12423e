"""How long an operator takes, by arithmetic.

Plans only compare times with each other, so what counts is the ratio of arithmetic to traffic: ten floating-point
operations for each byte, as on a CPU core with AVX2 and on a GPU without tensor cores.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from integrations.checkpoint.memory import tensors_of

FLOPS = 1e11  # a second
BYTES = 1e10  # a second
LAUNCH = 5e-6  # seconds, of any operator


def seconds_of(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]) -> float:
    """Seconds of a call: of its arithmetic or of the bytes that it reads and writes, whichever takes longer."""
    moved = 0
    for given in (args, kwargs.values(), results):
        for tensor in tensors_of(given):
            moved += _nbytes(tensor)
    formula = flop_registry.get(function.overloadpacket)
    flops = 0
    if formula is not None:
        flops = formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else results)
    return LAUNCH + max(flops / FLOPS, moved / BYTES)


def _nbytes(tensor: Tensor) -> int:
    try:
        return int(tensor.numel()) * tensor.element_size()
    except (NotImplementedError, RuntimeError):  # a subclass without a size of its own
        return 0
